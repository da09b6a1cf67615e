"""What a zone of the control plane answers now: the same code as in a DNS server, without one."""

from __future__ import annotations

from collections.abc import Callable

import dns.exception
import dns.name
import dns.rdatatype

from skerry_dns.zone import place_records
from skerry_dns.zone.from_topology import zone_of
from skerry_dns.zone.zone import Kind, Zone
from skerry_dns.zone.zone_file import ZoneError
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.views import DnsAnswer, DnsQuestion
from skerry_regions.control.errors import Conflict, Invalid, UnknownResource
from skerry_regions.control.planning.zone_contents import ZoneBook
from skerry_regions.geo.from_topology import places_of
from skerry_regions.geo.places import Places, State
from skerry_regions.geo.ranking import ClientOrigin
from skerry_regions.topology.loading import TopologyError, decode_topology

SERIAL = 1  # no client is shown it


class ZoneAnswers:
    """`AnswerDns` of a control plane. Safe to use from threads."""

    def __init__(
        self, store: Store, book: ZoneBook, ready_regions: Callable[[], frozenset[str]]
    ) -> None:
        """`ready_regions` are those with an edge that is ready."""
        self._store = store
        self._book = book
        self._ready_regions = ready_regions
        self._made: dict[str, tuple[str, Zone, Places]] = {}  # by zone, with its etag

    def __call__(self, question: DnsQuestion) -> DnsAnswer:
        """Raises Invalid, UnknownResource, or Conflict where the zone cannot be served as it is."""
        name = _name(question)
        rdtype = _type(question)
        zone_name = self._zone_of(name)
        zone, places = self._zone(zone_name)
        found = zone.find(name, rdtype)
        sets, scope, regions = found.answer, 0, list[str]()
        if found.kind is Kind.GEO:
            client, slot = ClientOrigin(), 0
            if question.client is not None:
                client, scope = places.locate(question.client.network_address)
                slot = places.slot(question.client.network_address)
            regions = places.order(client, slot)
            rrset = place_records.answer(places, name, rdtype, client, slot=slot, ttl=zone.geo_ttl)
            sets = [] if rrset is None else [rrset]
        return DnsAnswer(
            zone=zone_name,
            name=question.name,
            type=question.type,
            client=str(question.client or ""),
            status="NXDOMAIN" if found.kind is Kind.NXDOMAIN else "NOERROR",
            ttl=sets[-1].ttl if sets else zone.negative_soa.ttl,
            values=[record.to_text() for record in sets[-1]] if sets else [],
            scope=scope if sets else 0,
            regions=regions,
        )

    def _zone_of(self, name: dns.name.Name) -> str:
        """Return the one with the longest name above `name`."""
        at = name.canonicalize()
        zones = self._store.desired.dns_zones()
        while len(at.labels) > 1:
            if (text := at.to_text(omit_final_dot=True)) in zones:
                return text
            at = at.parent()
        raise UnknownResource(f"{name} is in no zone of ours")

    def _zone(self, name: str) -> tuple[Zone, Places]:
        contents = self._book.contents(name)
        known = self._made.get(name)
        if known is None or known[0] != contents.etag:
            known = self._made[name] = contents.etag, *_made(contents.document)
        _, zone, places = known
        places.state = State(down=frozenset(places.regions) - self._ready_regions())
        return zone, places


def _made(document: bytes) -> tuple[Zone, Places]:
    try:
        topology = decode_topology(document)
        if topology.dns is None:
            raise ZoneError("the zone's document has no `dns` section")
        places = places_of(topology)
        return zone_of(topology.dns, places, SERIAL), places
    except (TopologyError, ZoneError) as error:
        raise Conflict(f"the zone cannot be served: {error}") from None


def _name(question: DnsQuestion) -> dns.name.Name:
    try:
        return dns.name.from_text(question.name)
    except (dns.exception.DNSException, ValueError) as error:
        raise Invalid(str(error), field="name") from None


def _type(question: DnsQuestion) -> dns.rdatatype.RdataType:
    try:
        rdtype = dns.rdatatype.from_text(question.type)
    except (dns.exception.DNSException, ValueError) as error:
        raise Invalid(str(error), field="type") from None
    if rdtype == dns.rdatatype.NONE or dns.rdatatype.is_metatype(rdtype):
        raise Invalid(f"{question.type} is no type of records", field="type")
    return rdtype
