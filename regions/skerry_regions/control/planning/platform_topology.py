"""The platform as a topology file has it: what its processes read."""

from __future__ import annotations

import msgspec

from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.desired.resources import RegionSpec
from skerry_regions.control.dns.specs import DnsZoneSpec
from skerry_regions.topology.spec import Link, Topology, TopologyRegion
from skerry_regions.topology.zone_spec import DnsSpec


def platform_topology(desired: Desired) -> Topology:
    """Return what every process may know: regions, what paths cost before they are measured, and
    how requests find their way.

    Where edges steer, the first zone by name says where clients are.
    """
    specs, routing = desired.regions(), desired.routing()
    links = {
        frozenset((name, path.to)): Link(
            between=(name, path.to), rtt=path.rtt, bandwidth=path.bandwidth
        )
        for name, spec in specs.items()
        for path in spec.paths
        if path.to in specs
    }
    zones = desired.dns_zones() if routing.steer is not None else {}
    return Topology(
        regions=tuple(map(region_of, specs.values())),
        links=tuple(links.values()),
        emulate=routing.emulate,
        steer=routing.steer,
        router=routing.router,
        dns=next(map(dns_of, zones.values()), None),
    )


def region_of(spec: RegionSpec) -> TopologyRegion:
    """Return it as a topology file has it."""
    place = (spec.latitude, spec.longitude)
    return TopologyRegion(
        name=spec.name,
        iata=spec.iata,
        coordinates=None if place[0] is None or place[1] is None else (place[0], place[1]),
        residency=spec.residency,
    )


def dns_of(spec: DnsZoneSpec) -> DnsSpec:
    """Return a zone as a topology file has it, without its records."""
    fields = msgspec.structs.asdict(spec)
    return DnsSpec(zone=fields.pop("name"), **fields)
