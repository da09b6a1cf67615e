"""What an operator writes down: regions, pools of nodes, edges and links.

    regions:
      - {name: fra, iata: FRA, residency: eu}
      - {name: gru, coordinates: [-23.43, -46.47], residency: br}
    pools:
      - {name: prefill, region: fra, role: prefill, model: "@cf/…", runner: numba, replicas: 2,
         file_tier: 4GiB}
      - {name: decode, region: fra, role: decode, model: "@cf/…"}
    edges:
      - {name: edge-fra, region: fra, port: 8787}
    links:
      - {between: [fra, gru], rtt: 0.196, bandwidth: 25_000_000}
    emulate: {rtt: links}
    warm_up:
      - {model: "@cf/…", system_prompts: ["You are a tide table."]}

`load_topology` checks everything at once and says file, line and key of what is wrong. Links that
are not written down start from distance, until they are measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from skerry_regions.models import located_yaml
from skerry_regions.spec_types import IPAddress, Latitude, Longitude, Name, Size
from skerry_regions.speeds import LinkSpeed
from skerry_regions.topology.airports import AIRPORTS
from skerry_regions.topology.zone_spec import DnsSpec, Mistake, address_mistakes, client_mistakes
from skerry_regions.view import LOCAL_LINK, UNKNOWN_LINK, Role
from skerry_regions.zones import GLOBAL, Zone

MAX_PROMPTS = 64  # to warm up, of one model
MAX_CHARS = 65_536  # of one such prompt
MAX_STEER_DRAIN_SECONDS = 60
EARTH_RADIUS_KM = 6371.0


class TopologyError(ValueError):
    """A topology that cannot work; the message begins with file and line."""


class Region(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place where nodes stand. Needs `coordinates` or a known `iata` code."""

    name: Name
    iata: Annotated[str, Meta(pattern="^[A-Z]{3}$")] | None = None
    coordinates: tuple[Latitude, Longitude] | None = None  # degrees
    residency: Zone = GLOBAL

    @property
    def location(self) -> tuple[float, float]:
        """(latitude, longitude) in degrees."""
        if self.coordinates is not None:
            return self.coordinates
        return AIRPORTS[self.iata or ""]


class Pool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal nodes of one region. `replicas` of them are started."""

    name: Name
    region: Name
    role: Role
    model: Annotated[str, Meta(min_length=1, max_length=256)]  # catalog id or alias
    runner: Literal["numba", "torch", "torch-deterministic", "jax", "toy"] = "numba"
    replicas: Annotated[int, Meta(ge=0, le=1000)] = 1
    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None  # per node; None: the runner's
    kv_blocks: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None  # per node, of 64 tokens
    file_tier: Size | None = None  # of disk per node, for KV beyond memory; "none" for none

    def node_names(self) -> list[str]:
        """Ids of its nodes, unique in the topology: `REGION-POOL-0`, `REGION-POOL-1`, …"""
        return [f"{self.region}-{self.name}-{i}" for i in range(self.replicas)]


class TLSFiles(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PEM files of an edge, read again when they change: a certificate with its chain, its key."""

    cert: Annotated[str, Meta(pattern="^/", max_length=4096)]
    key: Annotated[str, Meta(pattern="^/", max_length=4096)]


class EdgeSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gateway. Listens on loopback unless told otherwise; port 0 takes a free one."""

    name: Name
    region: Name
    host: Annotated[str, Meta(min_length=1, max_length=253)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    addresses: Annotated[tuple[IPAddress, ...], Meta(max_length=16)] = ()  # that clients reach
    placement: Literal["cost", "nearest", "round-robin"] = "cost"  # the others to compare with
    url: Annotated[str, Meta(pattern=r"^https?://[^/?#\s]+$", max_length=300)] | None = None
    """What clients of this machine are told, where host and port are not what they should use."""
    tls: TLSFiles | None = None


class Link(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A path between two regions (or inside one), either way. What is absent is a prior."""

    between: tuple[Name, Name]
    rtt: Annotated[float, Meta(gt=0, le=10)] | None = None  # seconds
    bandwidth: Annotated[float, Meta(gt=0, le=1e14)] | None = None  # bytes per second


class Emulate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Distances that all regions on one machine lack; for trials."""

    rtt: Literal["links"]  # as `links` say, and where they do not, by distance


class Steer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What edges say to clients that are nearer to another edge, or when they are to stop."""

    policy: Literal["advise", "redirect"]  # `Alt-Svc`, or 307
    margin: Annotated[float, Meta(ge=0, le=10)] = 0.03
    """Seconds of a round trip by which the other edge must be nearer."""
    drain_seconds: Annotated[float, Meta(ge=0, le=MAX_STEER_DRAIN_SECONDS)] = 4.0
    """That an edge which is told to stop goes on taking requests, and says so."""


class WarmUp(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """System prompts that every new node of a model computes before it is ready.

    Whoever's conversation begins with one, of whatever tenant, finds it cached.
    """

    model: Annotated[str, Meta(min_length=1, max_length=256)]  # catalog id or alias
    system_prompts: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=MAX_CHARS)], ...],
        Meta(min_length=1, max_length=MAX_PROMPTS),
    ]


class Topology(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it, checked."""

    regions: Annotated[tuple[Region, ...], Meta(min_length=1, max_length=1000)]
    pools: Annotated[tuple[Pool, ...], Meta(max_length=10_000)] = ()
    edges: Annotated[tuple[EdgeSpec, ...], Meta(max_length=10_000)] = ()
    links: Annotated[tuple[Link, ...], Meta(max_length=100_000)] = ()
    emulate: Emulate | None = None
    dns: DnsSpec | None = None
    steer: Steer | None = None
    warm_up: Annotated[tuple[WarmUp, ...], Meta(max_length=1024)] = ()

    def region(self, name: str) -> Region:
        """Raises KeyError when there is none."""
        for region in self.regions:
            if region.name == name:
                return region
        raise KeyError(name)

    def link_priors(self) -> dict[tuple[str, str], LinkSpeed]:
        """What to assume of each pair of regions, and of each region itself, until measured."""
        written = {frozenset(link.between): link for link in self.links}
        priors = {}
        for i, a in enumerate(self.regions):
            for b in self.regions[i:]:
                link = written.get(frozenset((a.name, b.name)))
                prior = LOCAL_LINK if a is b else distance_prior(distance_km(a, b))
                priors[a.name, b.name] = LinkSpeed(
                    rtt=link.rtt if link and link.rtt else prior.rtt,
                    bandwidth=link.bandwidth if link and link.bandwidth else prior.bandwidth,
                )
        return priors


def distance_km(a: Region, b: Region) -> float:
    """Along a great circle."""
    (lat_a, lon_a), (lat_b, lon_b) = a.location, b.location
    phi_a, phi_b = math.radians(lat_a), math.radians(lat_b)
    half_phi, half_lambda = (phi_b - phi_a) / 2, math.radians(lon_b - lon_a) / 2
    h = math.sin(half_phi) ** 2 + math.cos(phi_a) * math.cos(phi_b) * math.sin(half_lambda) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(h, 1.0)))


def distance_prior(km: float) -> LinkSpeed:
    """RTT of the public internet by distance: 14 ms + 15.7 µs per km.

    Fitted to IBM's published inter-region matrix of March 2024 (45 pairs, R² 0.79, median error
    21 ms). A prior only: nearest by distance is not nearest by RTT in 13 % of three-way choices.
    """
    return LinkSpeed(rtt=0.014 + 15.7e-6 * km, bandwidth=UNKNOWN_LINK.bandwidth)


def load_topology(path: Path) -> Topology:
    """Read and check a YAML file. Raises `TopologyError`, or `OSError` when it cannot be read."""
    try:
        return _checked(located_yaml.load(path, Topology))
    except located_yaml.YamlError as error:
        raise TopologyError(str(error)) from None


def parse_topology(data: bytes, *, source: str = "topology") -> Topology:
    """The same from memory; `source` stands for the file in messages."""
    try:
        return _checked(located_yaml.parse(data, source, Topology))
    except located_yaml.YamlError as error:
        raise TopologyError(str(error)) from None


def decode_topology(data: bytes) -> Topology:
    """From JSON, as another process wrote it. Raises `TopologyError`."""
    try:
        topology = msgspec.json.decode(data, type=Topology)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TopologyError(str(error)) from None
    for path, mistake in _mistakes(topology):
        raise TopologyError(f"{path}: {mistake}")
    return topology


def _checked(document: located_yaml.Located[Topology]) -> Topology:
    """Raises `YamlError` at the first mistake."""
    for path, mistake in _mistakes(document.value):
        raise document.error(path, mistake)
    return document.value


def _mistakes(topology: Topology) -> Iterator[Mistake]:
    """What the types cannot say, in the order of the file."""
    regions = {region.name for region in topology.regions}
    for i, region in enumerate(topology.regions):
        if region.coordinates is None and region.iata is None:
            yield f"regions[{i}]", f"region {region.name!r} needs `iata` or `coordinates`"
        elif region.coordinates is None and region.iata not in AIRPORTS:
            yield (
                f"regions[{i}].iata",
                f"airport {region.iata!r} is not in our list; give `coordinates`",
            )
    yield from _duplicates("regions", [region.name for region in topology.regions])
    yield from _duplicates("edges", [edge.name for edge in topology.edges])
    yield from _unknown_regions("pools", [pool.region for pool in topology.pools], regions)
    yield from _unknown_regions("edges", [edge.region for edge in topology.edges], regions)
    yield from _duplicates("pools", [f"{p.region}/{p.name}" for p in topology.pools])
    yield from _duplicate_nodes(topology)
    yield from _incomplete_pools(topology)
    yield from _link_mistakes(topology, regions)
    yield from _dns_mistakes(topology)
    yield from _warm_up_mistakes(topology)


def _unknown_regions(section: str, names: list[str], regions: set[str]) -> Iterator[Mistake]:
    for i, name in enumerate(names):
        if name not in regions:
            yield f"{section}[{i}].region", f"there is no region {name!r}"


def _duplicates(section: str, names: list[str]) -> Iterator[Mistake]:
    seen = set()
    for i, name in enumerate(names):
        if name in seen:
            yield f"{section}[{i}].name", f"{name!r} is there twice"
        seen.add(name)


def _duplicate_nodes(topology: Topology) -> Iterator[Mistake]:
    """Pools `b` of region `a-b` and `b-b` of region `a` would both make a node `a-b-b-0`."""
    seen = set()
    for i, pool in enumerate(topology.pools):
        for name in pool.node_names():
            if name in seen:
                yield f"pools[{i}].name", f"a second node would be called {name!r}"
                return
            seen.add(name)


def _incomplete_pools(topology: Topology) -> Iterator[Mistake]:
    """Prefill nodes need somebody who decodes. (Decode nodes can prefill for themselves.)"""
    decoded = {pool.model for pool in topology.pools if pool.role != "prefill"}
    for i, pool in enumerate(topology.pools):
        if pool.model not in decoded:
            yield f"pools[{i}].role", f"no pool decodes {pool.model!r}"


def _warm_up_mistakes(topology: Topology) -> Iterator[Mistake]:
    models = {pool.model for pool in topology.pools}
    for i, warm_up in enumerate(topology.warm_up):
        if warm_up.model not in models:
            yield f"warm_up[{i}].model", f"no pool has the model {warm_up.model!r}"


def _link_mistakes(topology: Topology, regions: set[str]) -> Iterator[Mistake]:
    seen = set()
    for i, link in enumerate(topology.links):
        for name in link.between:
            if name not in regions:
                yield f"links[{i}].between", f"there is no region {name!r}"
        pair = frozenset(link.between)
        if pair in seen:
            yield f"links[{i}].between", "this pair is there twice"
        seen.add(pair)


def _dns_mistakes(topology: Topology) -> Iterator[Mistake]:
    for i, edge in enumerate(topology.edges):
        yield from address_mistakes(f"edges[{i}].addresses", edge.addresses)
    if topology.dns is None:
        return
    zones = {region.name: region.residency for region in topology.regions}
    for path, mistake in client_mistakes(topology.dns.nameservers, topology.dns.nets, zones):
        yield f"dns.{path}", mistake
