"""From a query's bytes to an answer's bytes: an authoritative server without its sockets.

Minimal answers, no recursion, no OPT unless asked for one. Beyond RFC 1034/1035: EDNS (6891),
client subnets (7871), cookies (7873, 9018), refusal of ANY (8482), extended errors (8914), and
an empty answer with TC=1 wherever one does not fit or would help an attacker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from skerry_edge.geo import wire
from skerry_edge.geo.cookies import RENEWAL, Cookies
from skerry_edge.geo.networks import Address
from skerry_edge.geo.places import Places
from skerry_edge.geo.response_rate import ResponseRate, Verdict
from skerry_edge.geo.zone import Found, Kind, Zone

UDP_PAYLOAD = 1232  # bytes; never fragmented (RFC 9715)
PLAIN_PAYLOAD = 512
STREAM_PAYLOAD = 65_535
NO_COOKIE_FACTOR = 3  # without a cookie an answer is at most this many times its query
IP_UDP_HEADER = 28  # bytes, that an amplification factor counts on both sides
HINFO_TTL = 3600
NOT_AUTHORITATIVE = dns.edns.EDECode.NOT_AUTHORITATIVE  # none of our zones


@dataclass(slots=True)
class Counters:
    """Events since the start, by name; for metrics."""

    values: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, name: str) -> None:
        self.values[name] = self.values.get(name, 0) + 1


class Signing(Protocol):
    """Adds what DNSSEC asks for; see `SignedZone`."""

    def complete(
        self,
        message: dns.message.Message,
        found: Found,
        rdtype: int,
        now: float,
        *,
        tells_nxdomain: bool,
    ) -> None: ...


@dataclass(slots=True)
class _Reply:
    """An answer without its OPT record, and what it was made of."""

    message: dns.message.Message
    scope: int = 0  # of an answer by place, in bits
    found: Found | None = None
    zone: Zone | None = None


class Responder:
    """Answers for some zones. `clock` gives Unix seconds."""

    def __init__(
        self,
        zones: Sequence[Zone],
        places: Places,
        *,
        cookies: Cookies,
        rate: ResponseRate,
        clock: Callable[[], float],
        server_id: bytes = b"",
        signed: Mapping[dns.name.Name, Signing] = MappingProxyType({}),
    ) -> None:
        """See `serve`."""
        self.version = 0
        self.serve(zones, places, signed)
        self.cookies = cookies
        self.rate = rate
        self._clock = clock
        self.server_id = server_id
        self.counters = Counters()

    def serve(
        self,
        zones: Sequence[Zone],
        places: Places,
        signed: Mapping[dns.name.Name, Signing] = MappingProxyType({}),
    ) -> None:
        """Answer for these from now on. `signed` are those that have a key, by origin."""
        self._zones = {zone.origin.canonicalize(): zone for zone in zones}
        self.places = places
        self._signed = signed
        self.version += 1  # for whoever keeps what this answered

    def respond(self, query: bytes, address: Address, *, stream: bool) -> bytes | None:
        """The answer to one query from `address`, or None when none is due.

        Over a `stream` (TCP) an answer may have 65,535 bytes and costs no budget: the sender has
        shown that it receives at its address.
        """
        try:
            asked = wire.parse(query)
        except wire.Ignored:
            self.counters.add("ignored")
            return None
        except wire.Refused as refused:
            self.counters.add(dns.rcode.to_text(refused.rcode))
            return self._limited(_bare(refused), address, stream, refused.rcode)
        now = self._clock()
        known = self._has_cookie(asked, address, now)
        reply = self._answer(asked, address)
        message = reply.message
        self.counters.add(dns.rcode.to_text(message.rcode()))
        verdict = Verdict.SEND
        if not stream and not known:
            kind = hash((message.rcode(), _rate_name(message)))
            verdict = self.rate.judge(address, kind, now)
        if verdict is Verdict.DROP:
            self.counters.add("dropped")
            return None
        if verdict is Verdict.SEND:
            self._sign(reply, asked, now)
        self._add_options(message, asked, reply.scope, address, now)
        if verdict is Verdict.CUT:
            return _wire(_cut(message))
        return self._rendered(message, len(query), asked, stream=stream, known=known)

    @property
    def zones(self) -> tuple[Zone, ...]:
        return tuple(self._zones.values())

    def is_signed(self, name: dns.name.Name) -> bool:
        """Whether answers for a name have signatures for those who ask for them."""
        zone = self.zone_of(name)
        return zone is not None and zone.origin in self._signed

    def render(
        self,
        name: dns.name.Name,
        rdtype: int,
        address: Address,
        *,
        dnssec_ok: bool = False,
        compact_ok: bool = False,
        turn: int = 0,
    ) -> bytes:
        """The whole answer to somebody at `address`, with neither id nor OPT, and no limits: for
        whoever keeps answers and completes them per query.

        Records of a set are in their own order, turned by `turn`. (Otherwise it is any order.)
        """
        edns = wire.Edns(STREAM_PAYLOAD, 0, dnssec_ok, compact_ok=compact_ok)
        asked = wire.Query(0, False, False, name, rdtype, dns.rdataclass.IN, edns)
        reply = self._answer(asked, address)
        self._sign(reply, asked, self._clock())
        for section in reply.message.sections[1:]:
            section[:] = [record for rrset in section for record in _turned(rrset, turn)]
        return _wire(reply.message)

    # --- what to answer --------------------------------------------------------------------------

    def _answer(self, asked: wire.Query, address: Address) -> _Reply:
        message = _reply_to(asked)
        if asked.edns is not None and asked.edns.version != 0:
            message.set_rcode(dns.rcode.BADVERS)
            return _Reply(message)
        if asked.type == dns.rdatatype.NXNAME:  # of proofs only (RFC 9824, 3.5)
            message.set_rcode(dns.rcode.FORMERR)
            return _Reply(message)
        zone = self.zone_of(asked.name)
        if zone is None or asked.rdclass != dns.rdataclass.IN:
            message.set_rcode(dns.rcode.REFUSED)
            return _Reply(message)
        if asked.type == dns.rdatatype.ANY:
            message.flags |= dns.flags.AA
            message.answer.append(
                dns.rrset.from_text(asked.name, HINFO_TTL, "IN", "HINFO", '"RFC8482" ""')
            )
            return _Reply(message, found=Found(Kind.ANSWER, asked.name), zone=zone)
        if asked.type in (dns.rdatatype.AXFR, dns.rdatatype.IXFR):
            message.set_rcode(dns.rcode.REFUSED)
            return _Reply(message)
        return self._look_up(message, zone, asked, address)

    def zone_of(self, name: dns.name.Name) -> Zone | None:
        """The zone with the longest origin above `name`."""
        at = name.canonicalize()
        while True:
            if zone := self._zones.get(at):
                return zone
            if len(at.labels) <= 1:
                return None
            at = at.parent()

    def _look_up(
        self, message: dns.message.Message, zone: Zone, asked: wire.Query, address: Address
    ) -> _Reply:
        """Fill in the sections. The scope is 0 for all that is static."""
        found = zone.find(asked.name, asked.type)
        if found.kind is not Kind.DELEGATION:
            message.flags |= dns.flags.AA
        if found.kind is Kind.NXDOMAIN:
            message.set_rcode(dns.rcode.NXDOMAIN)
        message.answer.extend(found.answer)
        message.authority.extend(found.authority)
        message.additional.extend(found.additional)
        reply = _Reply(message, found=found, zone=zone)
        if found.kind is Kind.GEO:
            self._by_place(reply, zone, asked, address)
        return reply

    def _by_place(self, reply: _Reply, zone: Zone, asked: wire.Query, address: Address) -> None:
        """Add the records of a geo name and their scope.

        The client's subnet counts when the query names one, the sender's address otherwise, and
        then the scope is 0. So it is of negative answers: resolvers keep those for everybody.
        """
        subnet = asked.edns.subnet if asked.edns is not None else None
        known = subnet is not None and subnet.network.prefixlen > 0
        where = subnet.network.network_address if subnet is not None and known else address
        client, scope = self.places.locate(where)
        rrset = self.places.answer(asked.name, asked.type, client)
        if rrset is None:
            reply.message.authority.append(zone.negative_soa)
            reply.found = Found(Kind.NODATA, asked.name)
            return
        reply.message.answer.append(rrset)
        reply.scope = scope if known else 0

    def _sign(self, reply: _Reply, asked: wire.Query, now: float) -> None:
        """For those who ask for signatures, in zones that have a key."""
        if asked.edns is None or not asked.edns.dnssec_ok:
            return
        if reply.zone is None or reply.found is None:
            return
        if (signed := self._signed.get(reply.zone.origin)) is not None:
            signed.complete(
                reply.message,
                reply.found,
                asked.type,
                now,
                tells_nxdomain=asked.edns.compact_ok,
            )

    # --- EDNS, limits ----------------------------------------------------------------------------

    def _has_cookie(self, asked: wire.Query, address: Address, now: float) -> bool:
        cookie = asked.edns.cookie if asked.edns is not None else None
        return cookie is not None and self.cookies.valid(cookie, address, int(now))

    def _add_options(
        self,
        message: dns.message.Message,
        asked: wire.Query,
        scope: int,
        address: Address,
        now: float,
    ) -> None:
        if asked.edns is None:
            return
        options: list[dns.edns.Option] = []
        if asked.edns.subnet is not None:
            options.append(_generic(wire.Option.CLIENT_SUBNET, asked.edns.subnet.option(scope)))
        if asked.edns.cookie is not None:
            options.append(
                _generic(wire.Option.COOKIE, self._cookie(asked.edns.cookie, address, now))
            )
        if asked.edns.wants_nsid and self.server_id:
            options.append(_generic(wire.Option.NSID, self.server_id))
        if message.rcode() == dns.rcode.REFUSED:
            options.append(dns.edns.EDEOption(NOT_AUTHORITATIVE))
        rcode = message.rcode()
        message.use_edns(0, _dnssec_flag(asked), UDP_PAYLOAD, options=options)
        message.set_rcode(rcode)  # its upper bits live in the OPT record

    def _cookie(self, cookie: bytes, address: Address, now: float) -> bytes:
        """The asker's own while it is young, else a new one."""
        if self.cookies.valid(cookie, address, int(now)):
            made = int.from_bytes(cookie[12:16], "big")
            if int(now) - made < RENEWAL:
                return cookie
        return self.cookies.make(cookie[:8], address, int(now))

    def _rendered(
        self,
        message: dns.message.Message,
        query_bytes: int,
        asked: wire.Query,
        *,
        stream: bool,
        known: bool,
    ) -> bytes:
        if stream:
            limit = STREAM_PAYLOAD
        else:
            payload = asked.edns.payload if asked.edns is not None else PLAIN_PAYLOAD
            limit = min(max(payload, PLAIN_PAYLOAD), UDP_PAYLOAD)
            if not known:
                fair = (query_bytes + IP_UDP_HEADER) * NO_COOKIE_FACTOR - IP_UDP_HEADER
                limit = min(limit, fair)
        rendered = _wire(message)
        return rendered if len(rendered) <= limit else _wire(_cut(message))

    def _limited(
        self, answer: bytes, address: Address, stream: bool, rcode: dns.rcode.Rcode
    ) -> bytes | None:
        """An answer of a header only: as large as its query at most, so never cut, but counted."""
        if stream or self.rate.judge(address, int(rcode), self._clock()) is Verdict.SEND:
            return answer
        self.counters.add("dropped")
        return None


def _reply_to(asked: wire.Query) -> dns.message.Message:
    message = dns.message.QueryMessage(id=asked.id)
    message.flags = dns.flags.Flag.QR
    if asked.recursion_desired:
        message.flags |= dns.flags.RD
    if asked.checking_disabled:
        message.flags |= dns.flags.CD
    message.question.append(
        dns.rrset.RRset(
            asked.name,
            dns.rdataclass.RdataClass.make(asked.rdclass),
            dns.rdatatype.RdataType.make(asked.type),
        )
    )
    return message


def _wire(message: dns.message.Message) -> bytes:
    """Bytes, however long: by itself `to_wire` stops at the UDP size that OPT states."""
    return message.to_wire(max_size=STREAM_PAYLOAD)


def _turned(rrset: dns.rrset.RRset, turn: int) -> list[dns.rrset.RRset]:
    """Its records one by one, as sets of several are shuffled when they are written."""
    first = turn % len(rrset)
    records = [*rrset[first:], *rrset[:first]]
    return [dns.rrset.from_rdata(rrset.name, rrset.ttl, record) for record in records]


def _cut(message: dns.message.Message) -> dns.message.Message:
    """The same answer with nothing in it but TC=1: come back over TCP."""
    message.answer.clear()
    message.authority.clear()
    message.additional.clear()
    message.flags |= dns.flags.TC
    return message


def _bare(refused: wire.Refused) -> bytes:
    flags = dns.flags.QR | refused.opcode << 11 | refused.rcode
    flags |= dns.flags.RD if refused.recursion_desired else 0
    return wire.HEADER.pack(refused.id, flags, 0, 0, 0, 0)


def _rate_name(message: dns.message.Message) -> dns.name.Name:
    """What a flood has in common: the name asked for, or the zone whose names do not exist."""
    if message.rcode() == dns.rcode.NXDOMAIN and message.authority:
        return message.authority[0].name
    if message.rcode() == dns.rcode.REFUSED:
        return dns.name.root
    return message.question[0].name.canonicalize()


def _generic(code: int, data: bytes) -> dns.edns.GenericOption:
    return dns.edns.GenericOption(dns.edns.OptionType.make(code), data)


def _dnssec_flag(asked: wire.Query) -> int:
    """DO is copied to the answer (RFC 3225)."""
    return int(dns.flags.DO) if asked.edns is not None and asked.edns.dnssec_ok else 0
