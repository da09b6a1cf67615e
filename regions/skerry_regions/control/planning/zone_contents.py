"""What a DNS server is sent of its zone: a topology of regions, edges and a `dns` section.

So a server reads the same document from the control plane as from a file, and can keep it in one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.desired.resources import DNS_ZONE, EDGE_NODE
from skerry_regions.control.desired.store import Store
from skerry_regions.control.dns.checks import lines_of
from skerry_regions.control.errors import UnknownResource
from skerry_regions.control.planning.platform_topology import dns_of, platform_topology
from skerry_regions.control.planning.wanted import is_leaving
from skerry_regions.topology.spec import EdgeSpec, TLSFiles, Topology


@dataclass(frozen=True, slots=True)
class ZoneDocument:
    """A document, and what changes when it does."""

    document: bytes
    etag: str


class ZoneBook:
    """The contents of zones, rebuilt when something was written. Safe to use from threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._made: dict[str, tuple[object, ZoneDocument]] = {}  # by zone: from what, and what

    def contents(self, zone: str) -> ZoneDocument:
        """Raises UnknownResource."""
        desired = self._store.desired
        if desired.get(DNS_ZONE, zone) is None:
            raise UnknownResource(f"there is no {DNS_ZONE.name} {zone!r}")
        ports = self._store.edge_ports()
        source = desired.revision, tuple(sorted(ports.items()))
        known = self._made.get(zone)
        if known is None or known[0] != source:
            document = msgspec.json.encode(topology_of(desired, zone, ports))
            etag = hashlib.sha256(document).hexdigest()[:32]
            known = self._made[zone] = source, ZoneDocument(document, etag)
        return known[1]


def topology_of(desired: Desired, zone: str, ports: Mapping[str, int]) -> Topology:
    """Return a zone that is there, with everything that its answers depend on."""
    records = [line for each in desired.dns_records(zone).values() for line in lines_of(each)]
    dns = replace(dns_of(desired.dns_zones()[zone]), records=tuple(records))
    return replace(platform_topology(desired), edges=_edges(desired, ports), dns=dns)


def _edges(desired: Desired, ports: Mapping[str, int]) -> tuple[EdgeSpec, ...]:
    """Return those that are to stay; when all are to go, all: clients have to go somewhere."""
    edges = desired.edge_nodes()
    staying = {
        id: spec
        for id, spec in edges.items()
        if not (spec.draining or is_leaving(desired, EDGE_NODE, id, spec.region))
    }
    return tuple(
        EdgeSpec(
            name=spec.name,
            region=spec.region,
            host=spec.host,
            port=spec.port or ports.get(id, 0),
            addresses=spec.addresses,
            url=spec.public_url,
            tls=TLSFiles(cert=spec.tls_cert, key=spec.tls_key)
            if spec.tls_cert and spec.tls_key
            else None,
        )
        for id, spec in (staying or edges).items()
    )
