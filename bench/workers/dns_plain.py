"""The plainest geo DNS server that dnspython makes, for `bench.dns`: `dns_plain PORT`.

Messages are read, answered and written by the library; the answers' records are made ahead.
"""

from __future__ import annotations

import asyncio
import ipaddress
import sys
from typing import cast

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset
import uvloop

from bench.subjects.dns_world import NAME, NETWORKS, ORIGIN, REGIONS, TTL, zone
from skerry_regions.geo.networks import Address, Networks

GEO_NAME, ZONE_NAME = dns.name.from_text(NAME), dns.name.from_text(ORIGIN)
ANSWERS = {
    name: dns.rrset.from_text(GEO_NAME, TTL, "IN", "A", address)
    for name, (_, address, _) in REGIONS.items()
}
CLIENTS = Networks(NETWORKS)
NEGATIVE = zone().negative_soa


def respond(wire: bytes, sender: str) -> bytes:
    query = dns.message.from_wire(wire)
    answer = dns.message.make_response(query)
    answer.flags |= dns.flags.AA
    name = query.question[0].name
    if not name.is_subdomain(ZONE_NAME):
        answer.set_rcode(dns.rcode.REFUSED)
    elif name != GEO_NAME or query.question[0].rdtype != dns.rdatatype.A:
        answer.set_rcode(dns.rcode.NOERROR if name == GEO_NAME else dns.rcode.NXDOMAIN)
        answer.authority.append(NEGATIVE)
    else:
        subnet = next(
            (each for each in query.options if isinstance(each, dns.edns.ECSOption)), None
        )
        where: Address = ipaddress.ip_address(sender if subnet is None else subnet.address)
        region, scope = CLIENTS.find(where)
        answer.answer.append(ANSWERS[region or next(iter(ANSWERS))])
        if subnet is not None:
            option = dns.edns.ECSOption(subnet.address, subnet.srclen, min(scope, 24))
            answer.use_edns(0, 0, 1232, options=[option])
    return answer.to_wire()


class Server(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(respond(data, addr[0]), addr)


async def main(port: int) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Server, ("127.0.0.1", port))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
