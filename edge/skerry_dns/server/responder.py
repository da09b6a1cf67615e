"""From a query's bytes to an answer's bytes: an authoritative server without its sockets.

Minimal answers, no recursion, no OPT unless asked for one. Beyond RFC 1034/1035: EDNS (6891),
client subnets (7871), cookies (7873, 9018), refusal of ANY (8482), extended errors (8914), and
an empty answer with TC=1 wherever one does not fit or would help an attacker.
"""

from __future__ import annotations

import copy
from collections import Counter
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

from skerry_dns import wire
from skerry_dns.server import messages
from skerry_dns.server.cookies import RENEWAL, Cookies
from skerry_dns.server.response_rate import ResponseRate, Verdict
from skerry_dns.zone import place_records
from skerry_dns.zone.zone import Found, Kind, Zone
from skerry_regions.geo.networks import Address
from skerry_regions.geo.places import Places

UDP_PAYLOAD = 1232  # bytes; never fragmented (RFC 9715)
PLAIN_PAYLOAD = 512
NO_COOKIE_FACTOR = 3  # without a cookie an answer is at most this many times its query
IP_UDP_HEADER = 28  # bytes, that an amplification factor counts on both sides
HINFO_TTL = 3600
NOT_AUTHORITATIVE = dns.edns.EDECode.NOT_AUTHORITATIVE  # none of our zones


@dataclass(slots=True)
class Counters:
    """Events since the start; for metrics."""

    answers: Counter[str] = field(default_factory=Counter[str])  # by code
    ignored: int = 0
    dropped: int = 0


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

    def snapshot(self) -> Responder:
        """One that goes on answering from what is served now; limits and counters are shared."""
        return copy.copy(self)

    def respond(self, query: bytes, address: Address, *, stream: bool) -> bytes | None:
        """The answer to one query from `address`, or None when none is due.

        Over a `stream` (TCP) an answer may have 65,535 bytes and costs no budget: the sender has
        shown that it receives at its address.
        """
        try:
            asked = wire.parse(query)
        except wire.Ignored:
            self.counters.ignored += 1
            return None
        except wire.Refused as refused:
            return self._limited(messages.bare(refused), address, stream, refused.rcode)
        now = self._clock()
        known = self._has_cookie(asked, address, now)
        reply = self._answer(asked, address)
        message = reply.message
        verdict = Verdict.SEND
        if not stream and not known:
            kind = hash((message.rcode(), messages.rate_name(message)))
            verdict = self.rate.judge(address, kind, now)
        if verdict is Verdict.DROP:
            self.counters.dropped += 1
            return None
        if verdict is Verdict.SEND:
            self._sign(reply, asked, now)
        self.counters.answers[dns.rcode.to_text(message.rcode())] += 1
        self._add_options(message, asked, reply.scope, address, now)
        if verdict is Verdict.CUT:
            return messages.to_wire(messages.cut(message))
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
        edns = wire.Edns(messages.MAX_BYTES, 0, dnssec_ok, compact_ok=compact_ok)
        asked = wire.Query(0, False, False, name, rdtype, dns.rdataclass.IN, edns)
        reply = self._answer(asked, address)
        self._sign(reply, asked, self._clock())
        messages.turn(reply.message, turn)
        return messages.to_wire(reply.message)

    # --- what to answer --------------------------------------------------------------------------

    def _answer(self, asked: wire.Query, address: Address) -> _Reply:
        message = messages.reply_to(asked)
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
        rrset = place_records.answer(self.places, asked.name, asked.type, client)
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
            options.append(
                messages.option(wire.Option.CLIENT_SUBNET, asked.edns.subnet.option(scope))
            )
        if asked.edns.cookie is not None:
            options.append(
                messages.option(wire.Option.COOKIE, self._cookie(asked.edns.cookie, address, now))
            )
        if asked.edns.wants_nsid and self.server_id:
            options.append(messages.option(wire.Option.NSID, self.server_id))
        if message.rcode() == dns.rcode.REFUSED:
            options.append(dns.edns.EDEOption(NOT_AUTHORITATIVE))
        rcode = message.rcode()
        message.use_edns(0, messages.dnssec_flag(asked), UDP_PAYLOAD, options=options)
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
            limit = messages.MAX_BYTES
        else:
            payload = asked.edns.payload if asked.edns is not None else PLAIN_PAYLOAD
            limit = min(max(payload, PLAIN_PAYLOAD), UDP_PAYLOAD)
            if not known:
                fair = (query_bytes + IP_UDP_HEADER) * NO_COOKIE_FACTOR - IP_UDP_HEADER
                limit = min(limit, fair)
        rendered = messages.to_wire(message)
        return rendered if len(rendered) <= limit else messages.to_wire(messages.cut(message))

    def _limited(
        self, answer: bytes, address: Address, stream: bool, rcode: dns.rcode.Rcode
    ) -> bytes | None:
        """An answer of a header only: as large as its query at most, so never cut, but counted."""
        if stream or self.rate.judge(address, int(rcode), self._clock()) is Verdict.SEND:
            self.counters.answers[dns.rcode.to_text(rcode)] += 1
            return answer
        self.counters.dropped += 1
        return None
