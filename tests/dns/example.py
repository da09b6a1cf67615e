"""A zone of three regions, and queries to it."""

from __future__ import annotations

import ipaddress

import dns.edns
import dns.flags
import dns.message
import dns.name
from tests.clock import Clock

from skerry_dns.server.cookies import Cookies
from skerry_dns.server.responder import Responder
from skerry_dns.server.response_limits import ResponseLimits
from skerry_dns.signing.signed_zone import SignedZone
from skerry_dns.zone.zone import Zone
from skerry_regions.geo.places import Places, Site
from skerry_regions.geo.ranking import ClientOrigin
from skerry_regions.topology.spec import TopologyRegion

ORIGIN = dns.name.from_text("example.test")
ZONE = """\
$TTL 3600
@           IN SOA ns1 hostmaster 1 7200 900 1209600 300
@           IN NS  ns1
ns1         IN A   192.0.2.53
www         IN CNAME static
static      IN A   192.0.2.80
to-ai       IN CNAME ai
out         IN CNAME elsewhere.invalid.
deep.er     IN TXT "down here"
*.wild      IN TXT "anything"
child       IN NS  ns.child
child       IN NS  ns.elsewhere.invalid.
ns.child    IN A   192.0.2.99
many        IN TXT {many}
caa         IN CAA 0 issue "ca.example.net"
""".format(many=" ".join(f'"{"x" * 200}{i}"' for i in range(10)))

REGIONS = {
    "fra": (["192.0.2.10", "192.0.2.11", "2001:db8::10"], (50.03, 8.54)),
    "iad": (["192.0.2.20"], (38.94, -77.46)),
    "nrt": (["192.0.2.30", "2001:db8::30"], (35.77, 140.39)),
}
PORTS = {"fra": 443, "iad": 9301, "nrt": None}  # of HTTP over TLS
SITES = [
    Site(
        TopologyRegion(name=name, coordinates=location),
        tuple(ipaddress.ip_address(each) for each in addresses),
        PORTS[name],
    )
    for name, (addresses, location) in REGIONS.items()
]
CLIENTS = {
    ipaddress.ip_network("198.51.100.0/25"): ClientOrigin(location=(52.5, 13.4)),
    ipaddress.ip_network("203.0.113.0/24"): ClientOrigin(location=(40.7, -74.0)),
    ipaddress.ip_network("203.0.112.0/24"): ClientOrigin(location=(40.7, -74.0)),
    ipaddress.ip_network("2001:db8:aaaa::/48"): ClientOrigin(location=(35.0, 135.0)),
}
NOW = 1_800_000_000.0  # Unix seconds
RESOLVER = ipaddress.ip_address("198.18.0.1")


def zone(*further: str) -> Zone:
    text = "\n".join((ZONE, *further, ""))
    return Zone(text, ORIGIN, frozenset({dns.name.from_text("ai", ORIGIN)}))


def responder(
    clock: Clock | None = None, *, per_second: float = 1e9, signed: SignedZone | None = None
) -> Responder:
    return Responder(
        [zone() if signed is None else signed.zone],
        Places(SITES, CLIENTS),
        cookies=Cookies(bytes(16)),
        limits=ResponseLimits(responses=per_second, subnets=1e9, proofs=1e9),
        clock=clock or Clock(NOW),
        server_id=b"edge-1",
        signed={} if signed is None else {ORIGIN: signed},
    )


def query(name: str, rdtype: str = "A", *, subnet: str = "", edns: bool = True) -> bytes:
    """A query as a resolver sends it; `subnet` as in `203.0.113.0/24`."""
    options: list[dns.edns.Option] = []
    if subnet:
        address, _, bits = subnet.partition("/")
        options.append(dns.edns.ECSOption(address, int(bits)))
    message = dns.message.make_query(
        dns.name.from_text(name, ORIGIN), rdtype, use_edns=0 if edns else -1, options=options
    )
    message.flags = dns.flags.Flag(0)
    return message.to_wire()


def ask(
    name: str, rdtype: str = "A", *, subnet: str = "", edns: bool = True, stream: bool = True
) -> dns.message.Message:
    wire = responder().respond(
        query(name, rdtype, subnet=subnet, edns=edns), RESOLVER, stream=stream
    )
    assert wire is not None
    return dns.message.from_wire(wire)


def texts(message: dns.message.Message) -> list[str]:
    """The answer section, one line per record, in the order of their text within a set."""
    return [line for rrset in message.answer for line in sorted(rrset.to_text().splitlines())]


def data(message: dns.message.Message) -> list[str]:
    """The data of the first set of records, sorted."""
    return sorted(record.to_text() for record in message.answer[0])
