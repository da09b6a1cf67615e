"""Records by place: regions that are near a client become addresses with a lifetime."""

from __future__ import annotations

import dns.name
import dns.rdatatype
import dns.rrset

from skerry_regions.geo.places import Places
from skerry_regions.geo.ranking import Client

TTL = 30  # seconds: with 6 s to notice a death, a client moves within 36 s


def answer(
    places: Places, owner: dns.name.Name, rdtype: int, client: Client
) -> dns.rrset.RRset | None:
    """Records of one geo name; None when the client's regions have none of this type.

    A and AAAA: all addresses of the best region that has such addresses. HTTPS: one record per
    region in their order, so that a client can fail over by itself (RFC 9460).
    """
    order = places.order(client)
    if rdtype == dns.rdatatype.HTTPS:
        texts = [_service(places, rank, name) for rank, name in enumerate(order, 1)]
    else:
        version = 4 if rdtype == dns.rdatatype.A else 6
        found = (places.addresses(name, version) for name in order)
        texts = next((addresses for addresses in found if addresses), [])
    return dns.rrset.from_text_list(owner, TTL, "IN", _text(rdtype), texts) if texts else None


def everywhere(places: Places, owner: dns.name.Name) -> list[dns.rrset.RRset]:
    """A, AAAA and HTTPS of all regions together, for servers that know no places."""
    result: list[dns.rrset.RRset] = []
    for version, kind in ((4, "A"), (6, "AAAA")):
        if texts := [each for name in places.regions for each in places.addresses(name, version)]:
            result.append(dns.rrset.from_text_list(owner, TTL, "IN", kind, texts))
    if services := [_service(places, rank, name) for rank, name in enumerate(places.regions, 1)]:
        result.append(dns.rrset.from_text_list(owner, TTL, "IN", "HTTPS", services))
    return result


def _service(places: Places, priority: int, name: str) -> str:
    """An HTTPS record's text: this host, with the region's addresses as hints."""
    hints = [
        f"ipv{version}hint={','.join(addresses)}"
        for version in (4, 6)
        if (addresses := places.addresses(name, version))
    ]
    return f"{priority} . alpn=http/1.1 {' '.join(hints)}"


def _text(rdtype: int) -> str:
    return dns.rdatatype.to_text(dns.rdatatype.RdataType.make(rdtype))
