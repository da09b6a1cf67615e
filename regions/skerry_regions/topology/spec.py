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

Links that are not written down start from distance, until they are measured.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from msgspec import Meta, Struct

from skerry.runners import RunnerName
from skerry_regions.spec_types import (
    ConsoleMode,
    EngineSpec,
    HostName,
    HttpURL,
    IataCode,
    IPAddress,
    Latitude,
    LinkBandwidth,
    LinkRtt,
    Longitude,
    Name,
    PEMFile,
    PlacementRule,
)
from skerry_regions.speeds import LinkSpeed
from skerry_regions.topology.airports import AIRPORTS
from skerry_regions.topology.zone_spec import DnsSpec
from skerry_regions.view import LOCAL_LINK, UNKNOWN_LINK, Role
from skerry_regions.zones import GLOBAL, Zone

MAX_PROMPTS = 64  # to warm up, of one model
MAX_CHARS = 65_536  # of one such prompt
MAX_STEER_DRAIN_SECONDS = 60
EARTH_RADIUS_KM = 6371.0


class TopologyRegion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place where nodes stand. Needs `coordinates` or a known `iata` code."""

    name: Name
    iata: IataCode | None = None
    coordinates: tuple[Latitude, Longitude] | None = None  # degrees
    residency: Zone = GLOBAL

    @property
    def location(self) -> tuple[float, float]:
        """Return (latitude, longitude) in degrees."""
        if self.coordinates is not None:
            return self.coordinates
        return AIRPORTS[self.iata or ""]


class TopologyPool(EngineSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal nodes of one region. `replicas` of them are started."""

    name: Name
    region: Name
    role: Role
    model: Annotated[str, Meta(min_length=1, max_length=256)]  # catalog id or alias
    runner: RunnerName = "numba"
    replicas: Annotated[int, Meta(ge=0, le=1000)] = 1

    def node_names(self) -> list[str]:
        """Return ids of its nodes, unique in the topology: `REGION-POOL-0`, `REGION-POOL-1`, …"""
        return [f"{self.region}-{self.name}-{i}" for i in range(self.replicas)]


class TLSFiles(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PEM files of an edge, read again when they change: a certificate with its chain, its key."""

    cert: PEMFile
    key: PEMFile


class EdgeSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gateway. Listens on loopback unless it says otherwise; port 0 takes a free one."""

    name: Name
    region: Name
    host: HostName = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    addresses: Annotated[tuple[IPAddress, ...], Meta(max_length=16)] = ()  # that clients reach
    placement: PlacementRule = "cost"  # the others to compare with
    url: HttpURL | None = None
    """What clients of this machine are sent, where host and port are not what they should use."""
    tls: TLSFiles | None = None
    hosts: Annotated[tuple[HostName, ...], Meta(max_length=64)] = ()
    """Names that it answers to, beside its address and loopback's; none: to all."""
    console: ConsoleMode | bool = "loopback"  # whom its pages are shown to; see `console_mode`


class Link(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A path between two regions (or inside one), either way. What is absent is a prior."""

    between: tuple[Name, Name]
    rtt: LinkRtt | None = None
    bandwidth: LinkBandwidth | None = None


class Emulate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Distances that all regions on one machine lack; for trials."""

    rtt: Literal["links"]  # as `links` say, and where they do not, by distance


class Steer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What edges say to clients that are nearer to another edge, or when they are to stop."""

    policy: Literal["advise", "redirect"]  # `Alt-Svc`, or 307
    margin: Annotated[float, Meta(ge=0, le=10)] = 0.03
    """Seconds of a round trip by which the other edge must be nearer."""
    drain_seconds: Annotated[float, Meta(ge=0, le=MAX_STEER_DRAIN_SECONDS)] = 4.0
    """That an edge which is to stop goes on taking requests, and says so."""


class RouterSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How edges choose nodes."""

    candidates: Literal["all", "indexed"] = "indexed"
    """Of a region with more than 64 nodes: price each of them, or those that an index names."""


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

    regions: Annotated[tuple[TopologyRegion, ...], Meta(min_length=1, max_length=1000)]
    pools: Annotated[tuple[TopologyPool, ...], Meta(max_length=10_000)] = ()
    edges: Annotated[tuple[EdgeSpec, ...], Meta(max_length=10_000)] = ()
    links: Annotated[tuple[Link, ...], Meta(max_length=100_000)] = ()
    emulate: Emulate | None = None
    dns: DnsSpec | None = None
    steer: Steer | None = None
    router: RouterSpec = RouterSpec()
    warm_up: Annotated[tuple[WarmUp, ...], Meta(max_length=1024)] = ()
    state: str | None = None  # `sqlite` or NATS servers: see `StateURL`; None: as the home has it

    def region(self, name: str) -> TopologyRegion:
        """Raises KeyError when there is none."""
        for region in self.regions:
            if region.name == name:
                return region
        raise KeyError(name)

    def link_priors(self) -> dict[tuple[str, str], LinkSpeed]:
        """Return what to assume of each pair of regions, and of each region itself,
        until measured."""
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

    def rtts(self) -> tuple[tuple[str, str, float], ...]:
        """Return the round trip to assume of each pair of regions, in seconds, in order."""
        priors = sorted(self.link_priors().items())
        return tuple((a, b, speed.rtt) for (a, b), speed in priors)


def distance_km(a: TopologyRegion, b: TopologyRegion) -> float:
    """Return the distance along a great circle."""
    (lat_a, lon_a), (lat_b, lon_b) = a.location, b.location
    phi_a, phi_b = math.radians(lat_a), math.radians(lat_b)
    half_phi, half_lambda = (phi_b - phi_a) / 2, math.radians(lon_b - lon_a) / 2
    h = math.sin(half_phi) ** 2 + math.cos(phi_a) * math.cos(phi_b) * math.sin(half_lambda) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(h, 1.0)))


def distance_prior(km: float) -> LinkSpeed:
    """Return RTT of the public internet by distance: 14 ms + 15.7 µs per km.

    Fitted to IBM's published inter-region matrix of March 2024 (45 pairs, R² 0.79, median error
    21 ms). A prior only: nearest by distance is not nearest by RTT in 13 % of three-way choices.
    """
    return LinkSpeed(rtt=0.014 + 15.7e-6 * km, bandwidth=UNKNOWN_LINK.bandwidth)
