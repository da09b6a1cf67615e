"""Records by place: regions that are near a client become addresses with a lifetime."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import dns.name
import dns.rdatatype
import dns.rrset

from skerry_regions.geo.places import Places
from skerry_regions.geo.ranking import ClientOrigin

DEFAULT_TTL = 30  # seconds: with 6 s to notice a death, a client moves within 36 s
HTTPS_PORT = 443


def answer(
    places: Places,
    owner: dns.name.Name,
    rdtype: int,
    client: ClientOrigin,
    *,
    slot: int = 0,
    ttl: int = DEFAULT_TTL,
) -> dns.rrset.RRset | None:
    """Return records of one geo name; None when the client's regions have none of this type.

    A and AAAA: all addresses of the best region, so both lead there or, where it has none of a
    family, nowhere else. HTTPS: one record per region with TLS, in their order, so that a client
    can fail over by itself (RFC 9460).
    """
    order = places.order(client, slot)
    if rdtype == dns.rdatatype.HTTPS:
        texts = _services(places, owner, order)
    else:
        version = 4 if rdtype == dns.rdatatype.A else 6
        texts = places.addresses(order[0], version) if order else []
    return dns.rrset.from_text_list(owner, ttl, "IN", _text(rdtype), texts) if texts else None


def everywhere(
    places: Places, owner: dns.name.Name, ttl: int = DEFAULT_TTL
) -> list[dns.rrset.RRset]:
    """Return A, AAAA and HTTPS of all regions together, for servers that know no places."""
    found: list[tuple[str, list[str]]] = [
        (kind, [each for name in places.regions for each in places.addresses(name, version)])
        for version, kind in ((4, "A"), (6, "AAAA"))
    ]
    found.append(("HTTPS", _services(places, owner, places.regions)))
    return [
        dns.rrset.from_text_list(owner, ttl, "IN", kind, texts) for kind, texts in found if texts
    ]


def lines_of_regions(places: Places, names: Sequence[dns.name.Name], ttl: int) -> Iterator[str]:
    """Yield addresses of each region with TLS under a name of its own, as lines of a zone file:
    what HTTPS records lead to."""
    for region in places.regions:
        if places.https_port(region) is None:
            continue
        for name in names:
            target = _target(region, name)
            for version, kind in ((4, "A"), (6, "AAAA")):
                for address in places.addresses(region, version):
                    yield f"{target} {ttl} IN {kind} {address}"


def _services(places: Places, owner: dns.name.Name, regions: Sequence[str]) -> list[str]:
    """Return HTTPS records' texts: each region's own name and port, with its addresses as hints."""
    texts: list[str] = []
    for region in regions:
        port = places.https_port(region)
        if port is None:
            continue
        words = [str(len(texts) + 1), str(_target(region, owner)), "alpn=http/1.1"]
        if port != HTTPS_PORT:
            words.append(f"port={port}")
        for version in (4, 6):
            if addresses := places.addresses(region, version):
                words.append(f"ipv{version}hint={','.join(addresses)}")
        texts.append(" ".join(words))
    return texts


def _target(region: str, owner: dns.name.Name) -> dns.name.Name:
    """Return it in lower case, however the owner was requested: signatures cover it as it is."""
    return dns.name.Name((region.encode(), *owner.canonicalize().labels))


def _text(rdtype: int) -> str:
    return dns.rdatatype.to_text(dns.rdatatype.RdataType.make(rdtype))
