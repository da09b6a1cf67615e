"""What DNSSEC adds to an answer: signatures, and compact proofs that something is not there.

RFC 9824: a name that does not exist is answered as one that has nothing but an NSEC record, whose
types say so (NXNAME); that record spans no other name, so the zone cannot be walked, and it takes
one signature. An answer from a wildcard is signed as if its name stood in the zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from skerry_dns.signing.signed_transfer import signed_transfer
from skerry_dns.signing.signer import Signer
from skerry_dns.signing.zone_key import ZoneKey
from skerry_dns.zone.zone import Found, Kind, Zone

ON_EVERY_NAME = frozenset({dns.rdatatype.RRSIG, dns.rdatatype.NSEC})
KEY_SETS = frozenset({dns.rdatatype.DNSKEY, dns.rdatatype.CDS, dns.rdatatype.CDNSKEY})


class SignedZone:
    """A zone and its signatures. Times are Unix seconds."""

    def __init__(self, zone: Zone, key: ZoneKey, beside: ZoneKey | None = None) -> None:
        """`beside` is a second key that is published: it signs what is said of keys too."""
        self.zone = zone
        self._signer = Signer(key, zone.origin)
        self._beside = None if beside is None else Signer(beside, zone.origin)

    def presign(self, now: float, before: SignedZone | None = None) -> None:
        """Sign all static records, but for those that are signed so in the zone `before`."""
        signer = None if before is None else before._signer
        self._signer.presign(self.zone.authoritative(), now, signer)

    def renew(self, now: float, limit: int) -> int:
        """See `Signer.renew`. (What a second key signs is renewed when it is requested.)"""
        return self._signer.renew(now, limit)

    def sign(self, rrset: dns.rrset.RRset, now: float, *, passing: bool = False) -> dns.rrset.RRset:
        """Return the RRSIG set of a record set; see `Signer.sign`."""
        signatures = self._signer.sign(rrset, now, passing=passing)
        if self._beside is not None and rrset.rdtype in KEY_SETS:
            for signature in self._beside.sign(rrset, now):
                signatures.add(signature)
        return signatures

    def transferred(
        self, further: Sequence[dns.rrset.RRset], now: float
    ) -> Iterator[dns.rrset.RRset]:
        """Return what a secondary gets: `Zone.transferred`, signed."""
        records = self.zone.transferred(further)
        return signed_transfer(records, self.zone.origin, lambda rrset: self.sign(rrset, now))

    def complete(
        self,
        message: dns.message.Message,
        found: Found,
        rdtype: int,
        now: float,
        *,
        tells_nxdomain: bool,
    ) -> None:
        """Add signatures and proofs to an answer. `tells_nxdomain`: the client knows compact proofs
        and wants NXDOMAIN none the less (the flag CO)."""
        nsec = self._denial(found, rdtype)
        if nsec is not None:
            if rdtype in ON_EVERY_NAME and found.kind is Kind.NODATA:
                message.authority.clear()
                message.answer.append(nsec)
            else:
                message.authority.append(nsec)
        if message.rcode() == dns.rcode.NXDOMAIN and not tells_nxdomain:
            message.set_rcode(dns.rcode.NOERROR)
        message.answer[:] = self._signed(message.answer, found, now)
        message.authority[:] = self._signed(message.authority, found, now)
        if rdtype == dns.rdatatype.RRSIG:  # all that there is of it: that of the NSEC record
            message.answer[:] = [each for each in message.answer if each.rdtype == rdtype]

    def _signed(
        self, rrsets: Iterable[dns.rrset.RRset], found: Found, now: float
    ) -> Iterator[dns.rrset.RRset]:
        for rrset in list(rrsets):
            yield rrset
            if found.kind is Kind.DELEGATION and rrset.rdtype == dns.rdatatype.NS:
                continue  # it is the child's
            passing = rrset.rdtype == dns.rdatatype.NSEC or not self.zone.has_name(rrset.name)
            yield self.sign(rrset, now, passing=passing)

    def _denial(self, found: Found, rdtype: int) -> dns.rrset.RRset | None:
        """Return the NSEC record of what was found, where something is missing."""
        match found.kind:
            case Kind.NXDOMAIN:
                types = {dns.rdatatype.NXNAME}
            case Kind.NODATA:
                types = self.zone.types(found.name) - {dns.rdatatype.RdataType.make(rdtype)}
            case Kind.DELEGATION if not any(
                each.rdtype == dns.rdatatype.DS for each in found.authority
            ):
                types = {dns.rdatatype.NS}
            case _:
                return None
        # In lower case, as its signature covers it in the case that it has.
        after = found.name.canonicalize().successor(self.zone.origin.canonicalize())
        listed = " ".join(dns.rdatatype.to_text(each) for each in sorted(types | ON_EVERY_NAME))
        ttl = self.zone.negative_soa.ttl
        return dns.rrset.from_text(found.name, ttl, "IN", "NSEC", f"{after} {listed}")
