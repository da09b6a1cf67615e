"""Signatures of a zone's record sets, made once and kept until they are near their end.

A geo answer has as many contents as there are orders of regions, so each is signed once and found
again. What strangers can make up without end (names that do not exist) is kept in a cache of its
own, which the oldest leave; so a flood of names costs signatures, and never those of real records.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterable

import dns.dnssec
import dns.name
import dns.rdata
import dns.rrset
from dns.rdtypes.ANY.RRSIG import RRSIG

from skerry_dns.signing.zone_key import ZoneKey

LIFETIME = 7 * 86_400  # seconds that a signature is good for …
JITTER = 43_200  # … less up to this, so that not all end at once …
SKEW = 3600  # … from this long ago on: validators' clocks may be behind
RENEWAL = LIFETIME // 2  # left when it is renewed …
LEAST_LEFT = 86_400  # … and the least with which it is still given out
MAX_LASTING = 65_536
MAX_PASSING = 4096

_Key = tuple[dns.name.Name, int, int, frozenset[dns.rdata.Rdata]]
_Signed = tuple[dns.rrset.RRset, RRSIG]


class Signer:
    """Signs for one zone. Times are Unix seconds."""

    def __init__(self, key: ZoneKey, origin: dns.name.Name) -> None:
        self._zone_key = key
        self._origin = origin
        self._lasting: dict[_Key, _Signed] = {}
        self._passing: OrderedDict[_Key, _Signed] = OrderedDict()

    def sign(self, rrset: dns.rrset.RRset, now: float, *, passing: bool = False) -> dns.rrset.RRset:
        """Return the RRSIG set of `rrset`. `passing`: the client chooses its name or
        content."""
        key = _key_of(rrset)
        known = self._lasting.get(key) or self._passing.get(key)
        if known is None or known[1].expiration - now < LEAST_LEFT:
            known = rrset, self._signature(rrset, now)
            self._keep(key, known, passing)
        return dns.rrset.from_rdata(rrset.name, rrset.ttl, known[1])

    def renew(self, now: float, limit: int) -> int:
        """Renew up to `limit` lasting signatures that are in the second half of their life."""
        due = [key for key, (_, made) in self._lasting.items() if made.expiration - now < RENEWAL]
        for key in due[:limit]:
            rrset, _ = self._lasting[key]
            self._lasting[key] = rrset, self._signature(rrset, now)
        return len(due[:limit])

    def presign(
        self, rrsets: Iterable[dns.rrset.RRset], now: float, before: Signer | None = None
    ) -> None:
        """Sign what is known before anyone requests it. What `before` has signed with the same key
        is taken over; others may go on using it meanwhile."""
        is_same_key = before is not None and before._zone_key.dnskey == self._zone_key.dnskey
        made = before._lasting.copy() if before is not None and is_same_key else {}
        for rrset in rrsets:
            key = _key_of(rrset)
            if key in made:
                self._keep(key, made[key], passing=False)
            self.sign(rrset, now)

    def _keep(self, key: _Key, signed: _Signed, passing: bool) -> None:
        if not passing and (key in self._lasting or len(self._lasting) < MAX_LASTING):
            self._lasting[key] = signed
            return
        self._passing[key] = signed
        if len(self._passing) > MAX_PASSING:
            self._passing.popitem(last=False)

    def _signature(self, rrset: dns.rrset.RRset, now: float) -> RRSIG:
        early = zlib.crc32(rrset.name.to_digestable() + bytes([rrset.rdtype & 0xFF])) % JITTER
        return dns.dnssec.sign(
            rrset,
            self._zone_key.private,
            self._origin,
            self._zone_key.dnskey,
            inception=int(now) - SKEW,
            expiration=int(now) + LIFETIME - early,
        )


def _key_of(rrset: dns.rrset.RRset) -> _Key:
    return rrset.name.canonicalize(), int(rrset.rdtype), rrset.ttl, frozenset(rrset)
