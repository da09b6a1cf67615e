"""A YAML file of what is wanted: a topology's, and what only a control plane can.

    regions:      [{name: fra, iata: FRA, draining: false}]
    pools:        [{name: decode, region: fra, role: decode, max_replicas: 4}]
    edges:        [{name: edge, region: fra, port: 8787}]
    deployments:  [{name: chat, model: "@cf/…", pools: [fra-decode]}]

All of it may be left out: what a file does not name stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from skerry_regions.control.desired.resources import (
    DEPLOYMENT,
    DNS_RECORD,
    DNS_ZONE,
    EDGE_NODE,
    POOL,
    REGION,
    ROUTING,
    DeploymentSpec,
    PoolSpec,
    ResourceKind,
    Spec,
    new_id,
)
from skerry_regions.control.desired.validation import spec_of
from skerry_regions.control.dns.checks import records_of
from skerry_regions.control.dns.specs import DnsZoneSpec
from skerry_regions.control.errors import ControlError, Invalid
from skerry_regions.models import located_yaml
from skerry_regions.spec_types import console_mode
from skerry_regions.topology.loading import state_mistakes
from skerry_regions.topology.spec import (
    EdgeSpec,
    Emulate,
    Link,
    RouterSpec,
    Steer,
    TopologyRegion,
    WarmUp,
)
from skerry_regions.topology.zone_spec import DnsSpec

MAX_ENTRIES = 10_000  # of one section


class ManifestRegion(TopologyRegion, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A region of a topology, which may drain."""

    draining: bool = False


class ManifestEdge(EdgeSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An edge of a topology, which may drain."""

    draining: bool = False


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file wants."""

    regions: Annotated[tuple[ManifestRegion, ...], Meta(max_length=1000)] = ()
    pools: Annotated[tuple[PoolSpec, ...], Meta(max_length=MAX_ENTRIES)] = ()
    edges: Annotated[tuple[ManifestEdge, ...], Meta(max_length=MAX_ENTRIES)] = ()
    deployments: Annotated[tuple[DeploymentSpec, ...], Meta(max_length=MAX_ENTRIES)] = ()
    warm_up: Annotated[tuple[WarmUp, ...], Meta(max_length=1024)] = ()
    dns: DnsSpec | None = None
    links: Annotated[tuple[Link, ...], Meta(max_length=100_000)] = ()
    emulate: Emulate | None = None
    steer: Steer | None = None
    router: RouterSpec | None = None
    state: str | None = None  # as in a topology: of who starts with this file


class ManifestError(ValueError):
    """A file that cannot be used; the message begins with file and line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One resource that is wanted. `path` is where the file says so, such as `pools[1]`."""

    kind: ResourceKind
    id: str
    spec: Spec
    path: str


def load_manifest(path: Path) -> located_yaml.Located[Manifest]:
    """Read and check a YAML file. Raises ManifestError."""
    try:
        with path.open("rb") as file:
            return parse_manifest(file.read(located_yaml.MAX_SIZE + 1), str(path))
    except OSError as error:
        raise ManifestError(f"cannot read {path}: {error.strerror}") from None


def parse_manifest(data: bytes, name: str) -> located_yaml.Located[Manifest]:
    """Check YAML from memory; `name` stands for the file in messages. Raises ManifestError."""
    try:
        document = located_yaml.parse(data, name, Manifest)
    except located_yaml.YamlError as error:
        raise ManifestError(str(error)) from None
    for path, mistake in state_mistakes(document.value.state):
        raise ManifestError(str(document.error(path, mistake)))
    try:
        wishes(document.value)
    except ControlError as error:
        raise ManifestError(str(document.error(error.field or "", error.message))) from None
    return document


def wishes(manifest: Manifest) -> list[Wish]:
    """Return the resources of a manifest, what others need first.

    Raises Invalid for the first that cannot be, or that is there twice.
    """
    found: dict[tuple[str, str], Wish] = {}
    for kind, values, path in _entries(manifest):
        wish = _wish(kind, values, path)
        if (wish.kind.name, wish.id) in found:
            raise Invalid(f"{wish.kind.name} {wish.id!r} is there twice", field=wish.path)
        found[wish.kind.name, wish.id] = wish
    return list(found.values())


Entry = tuple[ResourceKind, dict[str, Any], str]
"""A resource that a manifest wants: its kind, its fields but those that are absent, and where the
file says so."""


def _entries(manifest: Manifest) -> Iterator[Entry]:
    for kind, values, path in _sections(manifest):
        yield kind, {name: value for name, value in values.items() if value is not None}, path


def _sections(manifest: Manifest) -> Iterator[Entry]:
    named = {region.name for region in manifest.regions}
    for i, link in enumerate(manifest.links):
        if link.between[0] not in named:
            raise Invalid(
                f"the file has no region {link.between[0]!r}", field=f"links[{i}].between[0]"
            )
    for i, region in enumerate(manifest.regions):
        latitude, longitude = region.coordinates or (None, None)
        values: dict[str, Any] = {
            "name": region.name, "residency": region.residency, "draining": region.draining,
            "iata": region.iata, "latitude": latitude, "longitude": longitude,
            "paths": [
                _path(link) for link in manifest.links if link.between[0] == region.name
            ],
        }  # fmt: skip
        yield REGION, values, f"regions[{i}]"
    for i, pool in enumerate(manifest.pools):
        yield POOL, msgspec.to_builtins(pool), f"pools[{i}]"
    for i, edge in enumerate(manifest.edges):
        cert, key = (None, None) if edge.tls is None else (edge.tls.cert, edge.tls.key)
        values = {
            "name": edge.name, "region": edge.region, "host": edge.host, "port": edge.port,
            "addresses": list(edge.addresses), "hosts": list(edge.hosts), "draining": edge.draining,
            "tls_cert": cert, "tls_key": key, "public_url": edge.url, "placement": edge.placement,
            "console": console_mode(edge.console),
        }  # fmt: skip
        yield EDGE_NODE, values, f"edges[{i}]"
    for i, deployment in enumerate(manifest.deployments):
        yield DEPLOYMENT, msgspec.to_builtins(deployment), f"deployments[{i}]"
    for i, warm_up in enumerate(manifest.warm_up):
        pools = [new_id(pool) for pool in manifest.pools if pool.model == warm_up.model]
        if not pools:
            raise Invalid(f"no pool has the model {warm_up.model!r}", field=f"warm_up[{i}].model")
        values = {"name": f"warm-up-{i}", "model": warm_up.model, "pools": pools}
        values["system_prompts"] = warm_up.system_prompts
        yield DEPLOYMENT, values, f"warm_up[{i}]"
    if manifest.dns is not None:
        yield from _dns(manifest.dns)
    routing = {name: getattr(manifest, name) for name in ("emulate", "steer", "router")}
    if any(each is not None for each in routing.values()):
        yield ROUTING, msgspec.to_builtins(routing), ""


def _path(link: Link) -> dict[str, Any]:
    """Return a link as the region that it names first has it."""
    values = {"to": link.between[1], "rtt": link.rtt, "bandwidth": link.bandwidth}
    return {name: value for name, value in values.items() if value is not None}


def _dns(spec: DnsSpec) -> Iterator[Entry]:
    zone = spec.zone.rstrip(".").lower()
    values = {name: getattr(spec, name) for name in DnsZoneSpec.__struct_fields__ if name != "name"}
    yield DNS_ZONE, {"name": zone} | msgspec.to_builtins(values), "dns"
    for record in records_of(zone, spec.records):
        yield DNS_RECORD, msgspec.to_builtins(record), "dns.records"


def _wish(kind: ResourceKind, values: dict[str, Any], path: str) -> Wish:
    """Return the wish, checked before anything is written."""
    try:
        spec = spec_of(kind, values)
    except Invalid as error:
        raise error.within(path) from None
    return Wish(kind=kind, id=new_id(spec), spec=spec, path=path)
