"""From a query's bytes to an answer's bytes: an authoritative server without its sockets.

Minimal answers, no recursion, no OPT but to one. Beyond RFC 1034/1035: EDNS (6891),
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
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass

from skerry_dns import wire
from skerry_dns.server import messages
from skerry_dns.server.cookies import RENEWAL, Cookies
from skerry_dns.server.response_limits import ResponseLimits
from skerry_dns.server.response_rate import Verdict
from skerry_dns.server.zone_lookup import LookupReply, ZoneLookup
from skerry_dns.zone.zone import Found, Kind, Zone
from skerry_regions.geo.networks import Address
from skerry_regions.geo.places import Places

UDP_PAYLOAD = 1232  # bytes; never fragmented (RFC 9715)
PLAIN_PAYLOAD = 512
NO_COOKIE_FACTOR = 3  # without a cookie an answer is at most this many times its query
IP_UDP_HEADER = 28  # bytes, that an amplification factor counts on both sides
NOT_AUTHORITATIVE = dns.edns.EDECode.NOT_AUTHORITATIVE  # none of our zones


@dataclass(slots=True)
class Counters:
    """Events since the start; for metrics."""

    answers: Counter[str] = field(default_factory=Counter[str])  # by code
    ignored: int = 0
    dropped: int = 0


class Signing(Protocol):
    """Adds what DNSSEC requires; see `SignedZone`."""

    def complete(
        self,
        message: dns.message.Message,
        found: Found,
        rdtype: int,
        now: float,
        *,
        tells_nxdomain: bool,
    ) -> None: ...


class Responder:
    """Answers for some zones. `clock` gives Unix seconds."""

    def __init__(
        self,
        zones: Sequence[Zone],
        places: Places,
        *,
        cookies: Cookies,
        limits: ResponseLimits,
        clock: Callable[[], float],
        server_id: bytes = b"",
        signed: Mapping[dns.name.Name, Signing] = MappingProxyType({}),
    ) -> None:
        """See `serve`."""
        self.version = 0
        self.serve(zones, places, signed)
        self.cookies = cookies
        self.limits = limits
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
        self._lookup = ZoneLookup(zones, places)
        self._signed = signed
        self.version += 1  # for whoever keeps what this answered

    def snapshot(self) -> Responder:
        """Return one that goes on answering from what is served now; limits and counters are
        shared."""
        return copy.copy(self)

    def respond(self, query: bytes, address: Address, *, stream: bool) -> bytes | None:
        """Return the answer to one query from `address`, or None when none is due.

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
        reply = self._lookup.answer(asked, address)
        message = reply.message
        verdict = Verdict.SEND
        if not stream and not known:
            kind = hash((message.rcode(), messages.rate_name(message)))
            subnet = None if asked.edns is None else asked.edns.subnet
            verdict = self.limits.judge(address, kind, now, subnet)
        if verdict is not Verdict.DROP and self._wants_proof(reply, asked):
            verdict = self._judge_proof(message, asked, address, known=known or stream)
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
        return self._lookup.zones

    @property
    def places(self) -> Places:
        return self._lookup.places

    def zone_of(self, name: dns.name.Name) -> Zone | None:
        """Return the zone with the longest origin above `name`."""
        return self._lookup.zone_of(name)

    def is_signed(self, name: dns.name.Name) -> bool:
        """Return whether answers for a name have signatures for those who request them."""
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
        slot: int = 0,
        turn: int = 0,
    ) -> bytes:
        """Return the whole answer to somebody at `address`, with neither id nor OPT, and no limits:
        for whoever keeps answers and completes them per query. Clients are of a `slot` of `Places`.

        Records of a set are in their own order, turned by `turn`. (Otherwise it is any order.)
        """
        edns = wire.Edns(messages.MAX_BYTES, 0, dnssec_ok, compact_ok=compact_ok)
        asked = wire.Query(0, False, False, name, rdtype, dns.rdataclass.IN, edns)
        reply = self._lookup.answer(asked, address, slot)
        self._sign(reply, asked, self._clock())
        messages.turn(reply.message, turn)
        return messages.to_wire(reply.message)

    def _wants_proof(self, reply: LookupReply, asked: wire.Query) -> bool:
        """Return whether signatures are to be made that cover a name which the client made up."""
        if asked.edns is None or not asked.edns.dnssec_ok:
            return False
        zone, found = reply.zone, reply.found
        if zone is None or found is None or zone.origin not in self._signed:
            return False
        is_referral = found.kind is Kind.DELEGATION
        return not is_referral and not zone.has_name(asked.name)

    def _judge_proof(
        self, message: dns.message.Message, asked: wire.Query, address: Address, *, known: bool
    ) -> Verdict:
        """Return whether to make one: never for who may not be there, as it is five times its
        query."""
        if message.rcode() == dns.rcode.NXDOMAIN and asked.edns and not asked.edns.compact_ok:
            message.set_rcode(dns.rcode.NOERROR)  # as a compact proof has it
        if not known:
            return Verdict.CUT
        is_allowed = self.limits.allows_proof(address, self._clock())
        return Verdict.SEND if is_allowed else Verdict.DROP

    def _sign(self, reply: LookupReply, asked: wire.Query, now: float) -> None:
        """Sign for those who request signatures, in zones that have a key."""
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
        """Return the client's own while it is young, else a new one."""
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
        """Return an answer of a header only: as large as its query at most, so never cut, but
        counted."""
        if stream or self.limits.judge(address, int(rcode), self._clock()) is Verdict.SEND:
            self.counters.answers[dns.rcode.to_text(rcode)] += 1
            return answer
        self.counters.dropped += 1
        return None
