"""Zone transfers with dnspython as the secondary, and notices of changes to secondaries."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import cast

import dns.asyncquery
import dns.dnssec
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdatatype
import dns.rrset
import dns.tsig
import dns.versioned
import dns.xfr
import dns.zone
import pytest
from dns.rdtypes.ANY.NSEC import NSEC
from tests.dns.example import ORIGIN, zone
from tests.dns.transfer.secondaries import (
    AI,
    EVERYWHERE,
    KEY,
    LOOPBACK,
    respond,
    signed_query,
    transfers,
    tsig_of,
    with_server,
)

from skerry_dns.signing.signed_zone import SignedZone
from skerry_dns.signing.zone_key import ZoneKey
from skerry_dns.transfer.notify import ATTEMPTS, notify
from skerry_dns.transfer.transfer import Transfers


def served() -> list[str]:
    """What a secondary should have: the zone file with the addresses of `ai` everywhere."""
    records = [*zone().transferred(EVERYWHERE)][:-1]
    return sorted(line for each in records for line in each.to_text().splitlines())


def got(secondary: dns.zone.Zone) -> list[str]:
    return sorted(
        f"{name} {ttl} IN {dns.rdatatype.to_text(rdata.rdtype)} {rdata}"
        for name, ttl, rdata in secondary.iterate_rdatas()
    )


async def transfer(port: int, into: dns.zone.Zone) -> None:
    query, _ = dns.xfr.make_query(into, keyring=KEY)
    await dns.asyncquery.inbound_xfr(LOOPBACK, into, query, port=port, timeout=60, lifetime=60)


@pytest.mark.parametrize("message_bytes", [16_384, 100])
def test_a_secondary_gets_the_zone(message_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skerry_dns.transfer.transfer.MESSAGE_BYTES", message_bytes)

    async def test(port: int) -> None:
        secondary = dns.versioned.Zone(ORIGIN, relativize=False)
        await transfer(port, secondary)
        assert got(secondary) == served()
        assert "ai.example.test. 30 IN A 192.0.2.30" in got(secondary)
        await transfer(port, secondary)  # by IXFR, now that it has a serial: nothing is new
        assert got(secondary) == served()

    with_server(test)


def test_queries_after_a_transfer_are_answered_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skerry_dns.transfer.transfer.MESSAGE_BYTES", 500)

    async def test(port: int) -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        last = dns.message.make_query("static.example.test", "A")
        for message in (signed_query(), last):
            wire = message.to_wire()
            writer.write(len(wire).to_bytes(2, "big") + wire)
        kinds: list[str] = []
        answer: dns.message.Message | None = None
        while answer is None or answer.id != last.id:
            length = int.from_bytes(await reader.readexactly(2), "big")
            answer = dns.message.from_wire(await reader.readexactly(length), keyring=False)
            kinds += [dns.rdatatype.to_text(each.rdtype) for each in answer.answer]
        assert kinds[0] == kinds[-2] == "SOA"
        writer.close()

    with_server(test)


def test_a_secondary_may_read_slowly_but_not_never() -> None:
    lines = [f'big{i} IN TXT "{"x" * 250}" "{"y" * 250}"' for i in range(3000)]
    large = zone(*lines)

    async def test(port: int) -> None:
        secondary = dns.zone.Zone(ORIGIN, relativize=False)
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        await asyncio.get_running_loop().sock_connect(slow, (LOOPBACK, port))
        reader, writer = await asyncio.open_connection(sock=slow, limit=1024)
        wire = signed_query().to_wire()
        writer.write(len(wire).to_bytes(2, "big") + wire)
        assert await reader.readexactly(2)  # and then nothing for longer than is allowed
        await transfer(port, secondary)  # meanwhile another one has all of it
        assert len(secondary.nodes) > 3000
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(4_000_000)
        writer.close()

    with_server(test, large, idle_seconds=2.0)


def test_who_has_no_key_gets_nothing() -> None:
    stranger = dns.tsig.Key(KEY.name, bytes(31) + b"\1", KEY.algorithm)
    other = dns.tsig.Key("other.", bytes(32), KEY.algorithm)
    weak = dns.tsig.Key(KEY.name, bytes(32), dns.tsig.HMAC_SHA1)

    async def test(port: int) -> None:
        plain = dns.message.make_query(ORIGIN, "AXFR")
        answer = await dns.asyncquery.tcp(plain, LOOPBACK, port=port, timeout=60)
        assert (answer.rcode(), answer.answer) == (dns.rcode.REFUSED, [])
        for key, error in (
            (stranger, dns.rcode.BADSIG),
            (other, dns.rcode.BADKEY),
            (weak, dns.rcode.BADKEY),
        ):
            wire = respond(transfers(), signed_query(key=key).to_wire())
            answer = dns.message.from_wire(wire, keyring=False)
            assert (answer.rcode(), answer.question) == (dns.rcode.NOTAUTH, [])
            told = tsig_of(answer)
            assert (told.error, told.mac) == (error, b"")
        wire = respond(transfers(), signed_query("child").to_wire())  # no zone of ours
        assert dns.message.from_wire(wire, keyring=False).rcode() == dns.rcode.REFUSED
        answer = await dns.asyncquery.udp(signed_query(), LOOPBACK, port=port, timeout=60)
        assert (answer.rcode(), answer.had_tsig) == (dns.rcode.REFUSED, True)

    with_server(test)


def test_secondaries_are_told_until_they_have_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[dns.message.Message] = []
    slept: list[float] = []

    class Secondary(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast(asyncio.DatagramTransport, transport)

        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            heard.append(message := dns.message.from_wire(data, keyring=KEY))
            answer = dns.message.make_response(message)
            answer.set_rcode(dns.rcode.REFUSED if len(heard) == 1 else dns.rcode.NOERROR)
            self.transport.sendto(answer.to_wire(), addr)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(Secondary, (LOOPBACK, 0))
        port = transport.get_extra_info("sockname")[1]
        await notify(zone(), KEY, [(LOOPBACK, port)], sleep)
        transport.close()
        [_, told] = heard
        assert (told.opcode(), told.flags & dns.flags.AA) == (dns.opcode.NOTIFY, dns.flags.AA)
        assert (told.question[0].name, told.had_tsig) == (ORIGIN, True)
        assert slept == [10.0]
        monkeypatch.setattr("skerry_dns.transfer.notify.TIMEOUT", 0.05)
        await notify(zone(), KEY, [(LOOPBACK, port)], sleep)  # nobody is there any more
        assert len(slept) == ATTEMPTS

    asyncio.run(main())


def test_a_signed_zone_goes_out_with_its_signatures_and_a_chain(tmp_path: Path) -> None:
    key = ZoneKey.create(tmp_path / "example.test.key")
    now = 1_800_000_000.0
    delegated = "signed IN DS 1 13 2 " + "ab" * 32, "signed IN NS ns.signed"
    signed = SignedZone(zone(*key.records(ORIGIN), *delegated), key)
    records = list(signed.transferred(EVERYWHERE, now))
    plain = list(signed.zone.transferred(EVERYWHERE))
    assert records[0] == records[-1] == plain[0]
    added = {dns.rdatatype.RRSIG, dns.rdatatype.NSEC}
    rest = [each for each in records if each.rdtype not in added]
    assert sorted(map(str, rest)) == sorted(map(str, plain))

    async def test(port: int) -> None:
        secondary = dns.versioned.Zone(ORIGIN, relativize=False)
        await transfer(port, secondary)
        check_signed(secondary, key, now)

    server_transfers = Transfers({ORIGIN: lambda: iter(records)}, KEY)
    with_server(test, server_transfers)


def check_signed(secondary: dns.zone.Zone, key: ZoneKey, now: float) -> None:
    """All that is the zone's own has a signature, and the chain leads through every name."""
    keys = {ORIGIN: dns.rrset.from_rdata(ORIGIN, 3600, key.dnskey).to_rdataset()}
    chain: dict[dns.name.Name, dns.name.Name] = {}
    for name, rdataset in secondary.iterate_rdatasets():
        if rdataset.rdtype == dns.rdatatype.RRSIG:
            continue
        signature = secondary.get_rrset(name, dns.rdatatype.RRSIG, rdataset.rdtype)
        cut = name if secondary.get_rdataset(name, "NS") is not None else name.parent()
        below = name != ORIGIN and cut != ORIGIN and secondary.get_rdataset(cut, "NS") is not None
        if below and rdataset.rdtype not in (dns.rdatatype.DS, dns.rdatatype.NSEC):
            assert signature is None
            continue
        rrset = dns.rrset.from_rdata_list(name, rdataset.ttl, list(rdataset))
        assert signature is not None
        dns.dnssec.validate(rrset, signature, keys, now=now)
        if rdataset.rdtype == dns.rdatatype.NSEC:
            chain[name] = cast(NSEC, rdataset[0]).next
    at, seen = ORIGIN, list[dns.name.Name]()
    while at not in seen:
        seen.append(at)
        at = chain[at]
    assert (at, set(seen)) == (ORIGIN, set(chain))
    assert AI in chain
    assert dns.name.from_text("ns.child", ORIGIN) not in chain  # glue
    assert sorted(chain) == sorted(seen) == seen  # in canonical order
