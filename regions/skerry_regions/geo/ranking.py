"""Which regions a client is sent to, best first: a chain of small filters over candidates.

Each filter is a pure function of the candidates and the client. A filter never leaves nothing: when
everything is down or too busy it passes all on, because an answer that may fail beats none (fail
open). Residency is the exception: a client bound to a zone never gets an address outside of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from skerry_regions.topology.spec import TopologyRegion, distance_km, distance_prior

Location = tuple[float, float]  # latitude, longitude; degrees


@dataclass(frozen=True, slots=True)
class RegionCandidate:
    """A region as DNS sees it now."""

    region: TopologyRegion
    up: bool = True
    busy: bool = False  # work waits there for longer than a detour takes
    weight: float = 1.0  # among regions that are equally near
    draining: bool = False  # it gives these clients to others


@dataclass(frozen=True, slots=True)
class ClientOrigin:
    """What is known of a client; nothing is fine."""

    location: Location | None = None
    region: str | None = None  # the one that it is at
    rtt: Mapping[str, float] = field(default_factory=dict[str, float])  # measured; seconds
    zone: str | None = None  # the residency zone that it must not leave


Candidates = Sequence[RegionCandidate]
Filter = Callable[[Candidates, ClientOrigin], Candidates]


def rank(candidates: Candidates, client: ClientOrigin, chain: Sequence[Filter]) -> list[str]:
    """Return names of regions, best first, after every filter of the chain."""
    left: Candidates = reduce(lambda kept, each: each(kept, client), chain, candidates)
    return [candidate.region.name for candidate in left]


def resident(candidates: Candidates, client: ClientOrigin) -> Candidates:
    """Return regions of the client's zone; possibly none."""
    if client.zone is None:
        return candidates
    return [each for each in candidates if each.region.residency == client.zone]


def up(candidates: Candidates, client: ClientOrigin) -> Candidates:
    """Return regions that answer, or all when none does."""
    return [each for each in candidates if each.up] or candidates


def nearest(candidates: Candidates, client: ClientOrigin) -> Candidates:
    """Sort by measured RTT, by distance where there is no measurement; else in their own order.

    Nearest by distance is not nearest by RTT in 13 % of three-way choices between published
    regions, so a measurement always counts before the prior.
    """
    return sorted(candidates, key=lambda each: seconds_to(each.region, client))


def shed(candidates: Candidates, client: ClientOrigin) -> Candidates:
    """Put busy regions last, else keep the order that they had."""
    return sorted(candidates, key=lambda each: each.busy)


def drained(candidates: Candidates, client: ClientOrigin) -> Candidates:
    """Sort regions that give the client away last, else in the order that they had."""
    return sorted(candidates, key=lambda each: each.draining)


def first(count: int) -> Filter:
    """Return the best `count`."""
    return lambda candidates, client: candidates[:count]


def seconds_to(region: TopologyRegion, client: ClientOrigin) -> float:
    """Return RTT to a region: measured, estimated from distance, or endless when nothing
    is known."""
    if region.name in client.rtt:
        return client.rtt[region.name]
    if client.location is None:
        return math.inf
    here = TopologyRegion(name="client", coordinates=client.location)
    return distance_prior(distance_km(here, region)).rtt
