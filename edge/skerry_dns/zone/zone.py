"""A zone's records, and what an authoritative server finds for a name in them.

RFC 1034, 4.3.2, with RFC 4592 (wildcards), 2308 (negative answers), 8020 (empty non-terminals
exist), and 9471 (glue is not optional). Parsing is dnspython's; names are compared without case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import cast

import dns.name
import dns.rdataclass
import dns.rdataset
import dns.rdatatype
import dns.rrset
from dns.rdtypes.ANY.CNAME import CNAME
from dns.rdtypes.ANY.NS import NS
from dns.rdtypes.ANY.SOA import SOA

from skerry_dns.zone.place_records import DEFAULT_TTL
from skerry_dns.zone.zone_file import ZoneError, read_zone_file

MAX_ALIASES = 8
DAY = 86_400
NEGATIVE_TTL = 30  # seconds
CNAME_TYPE = dns.rdatatype.CNAME
GEO_TYPES = frozenset({dns.rdatatype.A, dns.rdatatype.AAAA, dns.rdatatype.HTTPS})

Name = dns.name.Name


class Kind(Enum):
    """What a name turned out to be."""

    ANSWER = "answer"
    GEO = "geo"  # the answer depends on the client
    NODATA = "nodata"
    NXDOMAIN = "nxdomain"
    DELEGATION = "delegation"


@dataclass(slots=True)
class Found:
    """Records for the sections of an answer."""

    kind: Kind
    name: Name  # where the search ended: the one requested, the end of its aliases, or a cut
    answer: list[dns.rrset.RRset] = field(default_factory=list[dns.rrset.RRset])
    authority: list[dns.rrset.RRset] = field(default_factory=list[dns.rrset.RRset])
    additional: list[dns.rrset.RRset] = field(default_factory=list[dns.rrset.RRset])


class Zone:
    """Static records, and names whose addresses are chosen per client."""

    def __init__(
        self,
        text: str,
        origin: Name,
        geo_names: frozenset[Name] = frozenset(),
        *,
        geo_ttl: int = DEFAULT_TTL,
    ) -> None:
        """From a zone file's text; `geo_ttl` seconds live answers by place. Raises `ZoneError`."""
        self._zone = read_zone_file(text, origin)
        self.origin = origin
        self.geo_ttl = geo_ttl
        self._geo = frozenset(name.canonicalize() for name in geo_names)
        for name in self._geo:
            self._check_geo(name)
        # Every name that exists, in lower case: those that only lead to others too.
        self.names = self._existing_names()
        soa = self._zone.get_rdataset(self.origin, dns.rdatatype.SOA)
        if soa is None:
            raise ZoneError(f"zone {self.origin}: no SOA record")
        self._soa = soa
        self.negative_soa = self._make_negative_soa()
        for name, node in self._zone.nodes.items():
            if node.get_rdataset(dns.rdataclass.IN, dns.rdatatype.CNAME) is not None:
                self._check_alias(name)

    def _check_alias(self, name: Name) -> None:
        """Raise `ZoneError` for aliases that lead round in a circle, or on for too long."""
        at = name
        for _ in range(MAX_ALIASES):
            source = self._source(at) if at.is_subdomain(self.origin) else None
            alias = None if source is None else self._zone.get_rdataset(source, CNAME_TYPE)
            if alias is None or self._delegation(at, CNAME_TYPE) is not None:
                return
            at = cast(CNAME, alias[0]).target
            if at == name:
                raise ZoneError(f"zone {self.origin}: {name} is an alias of itself")
        raise ZoneError(f"zone {self.origin}: {name} is an alias of more than {MAX_ALIASES} names")

    def _check_geo(self, name: Name) -> None:
        if not name.is_subdomain(self.origin):
            raise ZoneError(f"{name} is not in the zone {self.origin}")
        node = self._zone.get_node(name)
        for rdataset in node.rdatasets if node is not None else ():
            if rdataset.rdtype in GEO_TYPES or rdataset.rdtype == dns.rdatatype.CNAME:
                kind = dns.rdatatype.to_text(rdataset.rdtype)
                raise ZoneError(f"{name} is answered by place, and has a static {kind} too")

    def _existing_names(self) -> frozenset[Name]:
        """Return every name that exists, those between a record and the origin too."""
        names: set[Name] = {self.origin.canonicalize()}
        for name in (*self._zone.nodes, *self._geo):
            walk = name.canonicalize()
            while walk not in names:
                names.add(walk)
                walk = walk.parent()
        return frozenset(names)

    def _make_negative_soa(self) -> dns.rrset.RRset:
        """Return the SOA as negative answers carry it: for min(TTL, MINIMUM) seconds (RFC 2308,
        5)."""
        rrset = _rrset(self.origin, self._soa)
        rrset.ttl = min(rrset.ttl, cast(SOA, rrset[0]).minimum)
        return rrset

    def find(self, name: Name, rdtype: int) -> Found:
        """Return what there is for `name`, which must be in the zone; owners keep the case of
        `name`."""
        if cut := self._delegation(name, rdtype):
            return cut
        answer: list[dns.rrset.RRset] = []
        for _ in range(MAX_ALIASES):
            if name.canonicalize() in self._geo and rdtype in GEO_TYPES:
                # An alias is not followed to it: the scope of such an answer would be ambiguous.
                return Found(Kind.ANSWER if answer else Kind.GEO, name, answer)
            source = self._source(name)
            if source is None:
                return Found(Kind.NXDOMAIN, name, answer, [self.negative_soa])
            rdataset = self._zone.get_rdataset(source, _type(rdtype))
            if rdataset is not None:
                answer.append(_rrset(name, rdataset))
                return Found(Kind.ANSWER, name, answer, additional=self._addresses_of(rdataset))
            alias = self._zone.get_rdataset(source, dns.rdatatype.CNAME)
            if alias is None:
                return Found(Kind.NODATA, name, answer, [self.negative_soa])
            answer.append(_rrset(name, alias))
            name = cast(CNAME, alias[0]).target
            if not name.is_subdomain(self.origin) or self._delegation(name, rdtype):
                break
        return Found(Kind.ANSWER, name, answer)

    def has_name(self, name: Name) -> bool:
        """Return whether it exists by itself, without a wildcard."""
        return name.canonicalize() in self.names

    def types(self, name: Name) -> set[dns.rdatatype.RdataType]:
        """Return types of records that this zone answers for a name, which may be a wildcard's."""
        source = self._source(name)
        node = None if source is None else self._zone.get_node(source)
        types = set() if node is None else {each.rdtype for each in node.rdatasets}
        if name != self.origin and dns.rdatatype.NS in types:
            types &= {dns.rdatatype.NS, dns.rdatatype.DS}  # the rest is the child's
        return types | GEO_TYPES if name.canonicalize() in self._geo else types

    def transferred(self, further: Sequence[dns.rrset.RRset] = ()) -> Iterator[dns.rrset.RRset]:
        """Yield what a secondary gets: SOA, all other static records and `further` ones, SOA."""
        soa = _rrset(self.origin, self._soa)
        yield soa
        for name, node in self._zone.nodes.items():
            for rdataset in node.rdatasets:
                if rdataset.rdtype != dns.rdatatype.SOA:
                    yield _rrset(name, rdataset)
        yield from further
        yield soa

    def authoritative(self) -> Iterator[dns.rrset.RRset]:
        """Yield all static records that are this zone's own: no cuts, no glue."""
        for name, node in self._zone.nodes.items():
            for rdataset in node.rdatasets:
                if self._delegation(name, rdataset.rdtype) is None:
                    yield _rrset(name, rdataset)

    def _source(self, name: Name) -> Name | None:
        """Return where the records of `name` stand: there, or at a wildcard; None: no such name.

        The wildcard is `*.E`, E being the closest encloser that exists (RFC 4592).
        """
        if name.canonicalize() in self.names:
            return name
        encloser = next(each for each in _parents(name) if each.canonicalize() in self.names)
        wildcard = dns.name.Name((b"*", *encloser.labels))
        return wildcard if wildcard.canonicalize() in self.names else None

    def _delegation(self, name: Name, rdtype: int) -> Found | None:
        """Return the highest zone cut on the way to `name`. A cut's own DS is the parent's to
        answer."""
        for at in reversed([name, *_parents(name)]):
            if at == self.origin or not at.is_subdomain(self.origin):
                continue
            rdataset = self._zone.get_rdataset(at, dns.rdatatype.NS)
            if rdataset is not None and not (at == name and rdtype == dns.rdatatype.DS):
                ds = self._zone.get_rdataset(at, dns.rdatatype.DS)
                return Found(
                    Kind.DELEGATION,
                    at,
                    authority=[_rrset(at, each) for each in (rdataset, ds) if each is not None],
                    additional=self._addresses_of(rdataset),
                )
        return None

    def _addresses_of(self, rdataset: dns.rdataset.Rdataset) -> list[dns.rrset.RRset]:
        """Return addresses of the hosts that NS records name, as far as this zone has them."""
        result: list[dns.rrset.RRset] = []
        if rdataset.rdtype != dns.rdatatype.NS:
            return result
        for host in (cast(NS, rdata).target for rdata in rdataset):
            for rdtype in (dns.rdatatype.A, dns.rdatatype.AAAA):
                addresses = self._zone.get_rdataset(host, rdtype)
                if addresses is not None:
                    result.append(_rrset(host, addresses))
        return result


def _parents(name: Name) -> Iterator[Name]:
    while len(name.labels) > 1:
        name = name.parent()
        yield name


def _type(rdtype: int) -> dns.rdatatype.RdataType:
    return dns.rdatatype.RdataType.make(rdtype)


def _rrset(owner: Name, rdataset: dns.rdataset.Rdataset) -> dns.rrset.RRset:
    return dns.rrset.from_rdata_list(owner, rdataset.ttl, list(rdataset))
