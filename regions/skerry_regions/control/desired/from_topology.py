"""A topology file as what is wanted: what it says is written down, what it no longer says goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.desired.resources import (
    DEPLOYMENT,
    DNS_RECORD,
    DNS_ZONE,
    EDGE_NODE,
    KINDS,
    POOL,
    REGION,
    ResourceKind,
    new_id,
)
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.validation import spec_of
from skerry_regions.control.dns.checks import records_of
from skerry_regions.control.dns.specs import DnsZoneSpec
from skerry_regions.topology.spec import Topology
from skerry_regions.topology.zone_spec import DnsSpec

ACTOR = "topology"
SOURCE = "source"  # name of the decision that marks what came from a file


def apply(topology: Topology, store: Store, changes: Changes) -> None:
    """Make the resources of a topology wanted. Raises ControlError at the first that cannot be.

    What was made by the API is left alone, unless the file has the same.
    """
    resources = list(_resources(topology))
    named = {(kind.name, id) for kind, id, _ in resources}
    _delete_absent(store, changes, named)
    for kind, id, values in resources:
        record = store.desired.get(kind, id)
        if record is None:
            changes.create(kind, values, actor=ACTOR, idempotency_key=None)
        else:
            defaults = dict.fromkeys(kind.spec.__struct_fields__)
            changes.update(kind, id, defaults | values, actor=ACTOR, if_match=None)
        with store.writing() as writing:
            writing.decide(kind, id, SOURCE, ACTOR)


def _delete_absent(store: Store, changes: Changes, named: set[tuple[str, str]]) -> None:
    """Users before what they use."""
    marked = store.decisions(SOURCE).keys() - named
    desired: Desired = store.desired
    for kind in reversed(KINDS):
        for record in desired.of(kind):
            if (kind.name, record.id) in marked:
                changes.delete(kind, record.id, actor=ACTOR, if_match=None)


def _resources(topology: Topology) -> Iterator[tuple[ResourceKind, str, dict[str, Any]]]:
    for region in topology.regions:
        latitude, longitude = region.coordinates or (None, None)
        values: dict[str, Any] = {"name": region.name, "residency": region.residency}
        values |= {"iata": region.iata, "latitude": latitude, "longitude": longitude}
        yield _resource(REGION, region.name, values)
    for pool in topology.pools:
        yield _resource(POOL, f"{pool.region}-{pool.name}", msgspec.to_builtins(pool))
    for edge in topology.edges:
        values = {
            "name": edge.name, "region": edge.region, "host": edge.host, "port": edge.port,
            "addresses": list(edge.addresses),
        }  # fmt: skip
        yield _resource(EDGE_NODE, edge.name, values)
    for number, warm_up in enumerate(topology.warm_up):
        name = f"warm-up-{number}"
        pools = [
            f"{pool.region}-{pool.name}" for pool in topology.pools if pool.model == warm_up.model
        ]
        values = {"name": name, "model": warm_up.model, "pools": pools}
        yield _resource(DEPLOYMENT, name, values | {"system_prompts": warm_up.system_prompts})
    if topology.dns is not None:
        yield from _dns(topology.dns)


def _dns(spec: DnsSpec) -> Iterator[tuple[ResourceKind, str, dict[str, Any]]]:
    zone = spec.zone.rstrip(".").lower()
    values = {name: getattr(spec, name) for name in DnsZoneSpec.__struct_fields__ if name != "name"}
    yield _resource(DNS_ZONE, zone, {"name": zone} | msgspec.to_builtins(values))
    for record in records_of(zone, spec.records):
        yield _resource(DNS_RECORD, new_id(record), msgspec.to_builtins(record))


def _resource(
    kind: ResourceKind, id: str, values: dict[str, Any]
) -> tuple[ResourceKind, str, dict[str, Any]]:
    """Without what is absent, and checked before anything is written."""
    values = {name: value for name, value in values.items() if value is not None}
    spec_of(kind, values)
    return kind, id, values
