"""A signed zone as a secondary gets it: with a chain of NSEC records in place of compact proofs.

A server of ours makes its proofs when it is queried; a secondary, which has no key, can only show
what it was given. So the whole chain goes out (RFC 4034, 4), and who has it, or queries a secondary
long enough, knows every name of the zone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import dns.dnssec
import dns.name
import dns.rdatatype
import dns.rrset
import dns.transaction
import dns.zone

Sign = Callable[[dns.rrset.RRset], dns.rrset.RRset]
"""The RRSIG set of a record set."""


def signed_transfer(
    records: Iterator[dns.rrset.RRset], origin: dns.name.Name, sign: Sign
) -> Iterator[dns.rrset.RRset]:
    """Yield what `Zone.transferred` gives, from SOA to SOA, with signatures and the chain."""
    zone = dns.zone.Zone(origin, relativize=False)
    soa = next(records)
    with zone.writer() as writer:
        writer.add(soa)
        for rrset in records:
            if rrset != soa:
                writer.add(rrset)

    def add_signatures(writer: dns.transaction.Transaction, rrset: dns.rrset.RRset) -> None:
        writer.add(sign(rrset))

    dns.dnssec.sign_zone(zone, rrset_signer=add_signatures)
    yield soa
    for name, rdataset in zone.iterate_rdatasets():
        if rdataset.rdtype != dns.rdatatype.SOA:
            yield dns.rrset.from_rdata_list(name, rdataset.ttl, list(rdataset))
    yield soa
