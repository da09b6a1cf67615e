"""How many nodes a pool should have: from what waits and how fast answers come. Pure.

    held at edges       a pool of none wakes
    queue seconds       so many nodes that what waits is done within the target
    TTFT, ITL (p95)     above the target: more, by as much as it is above, at most twice as many;
                        below: as few as would keep it below four fifths of the target

Not by utilisation: an engine that batches is busy with one stream as with many. Growth is at once,
and looks at latencies again only when what it added has served for a while. Shrinking waits until
less was needed for the whole of `idle_seconds`. No stream is cut off: fewer nodes means that some
drain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from skerry_regions.control.desired.resources import PoolSpec

LATENCY_WINDOW = 60.0  # seconds that a p95 looks back
MARGIN = 0.8  # of the target, that shrinking keeps below
MOST_GROWTH = 2.0  # at once, for latencies
NUM_SLICES = 10  # of `idle_seconds`, in which the most that was needed is kept

Count = Annotated[int, Meta(ge=0, le=1 << 31)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]


class PoolDemand(Struct, frozen=True, kw_only=True):
    """The demand for one pool now."""

    ready: Count = 0  # nodes
    streams: Count = 0  # on them
    held: Count = 0  # requests that wait at edges for any node of the model
    queue_seconds: Seconds = 0.0  # of work that waits, all nodes together, done by one
    ttft: Seconds | None = None  # p95 of the last minute; None: nothing was answered
    itl: Seconds | None = None  # p95 of the last minute


@dataclass(frozen=True, slots=True)
class Scale:
    """A decision, and what the next one needs to know. Times are the caller's clock's."""

    replicas: int
    reason: str = ""
    peaks: tuple[tuple[float, int], ...] = ()  # slices of time, oldest first, and the most needed
    latency_from: float = -math.inf  # before then latencies are still those of fewer nodes


def decide(spec: PoolSpec, demand: PoolDemand, before: Scale, now: float) -> Scale:
    """Return the next decision of an autoscaled pool, within its limits."""
    is_growing = demand.ready < before.replicas
    latency_from = now + LATENCY_WINDOW if is_growing else before.latency_from
    needed, reason = _needed(spec, demand, before, trusts_latency=now >= latency_from)
    peaks = _with_peak(before, needed, now, spec.idle_seconds)
    target = max(number for _, number in peaks)
    if target > needed:
        reason = f"{needed} would do, but not for long enough"
    replicas = min(max(target, spec.min_replicas or 0), spec.max_replicas or 0)
    return Scale(replicas, reason, peaks, latency_from)


def _needed(
    spec: PoolSpec, demand: PoolDemand, before: Scale, *, trusts_latency: bool
) -> tuple[int, str]:
    """Return how many nodes now, and why."""
    reasons = [(0, "nothing to do")]
    if demand.streams:
        reasons.append((1, f"{demand.streams} streams run"))
    if demand.held:
        reasons.append((1, f"{demand.held} requests wait for a first node"))
    if demand.queue_seconds:
        number = math.ceil(demand.queue_seconds / spec.target_queue_seconds)
        reasons.append((number, f"{demand.queue_seconds:.1f} s of work wait"))
    for name, latency, target in _latencies(spec, demand):
        number = _for_latency(demand.ready, latency, target)
        if number > demand.ready and not trusts_latency:
            number = min(before.replicas, spec.max_replicas or 0)
        reasons.append((number, f"{name} is {latency:.3f} s at p95, the target {target:g} s"))
    return max(reasons, key=lambda each: each[0])


def _latencies(spec: PoolSpec, demand: PoolDemand) -> list[tuple[str, float, float]]:
    """Return those that the pool's role decides, with their targets."""
    found = []
    if spec.role != "decode" and demand.ttft is not None:
        found.append(("TTFT", demand.ttft, spec.target_ttft_seconds))
    if spec.role != "prefill" and demand.itl is not None:
        found.append(("ITL", demand.itl, spec.target_itl_seconds))
    return found


def _for_latency(ready: int, latency: float, target: float) -> int:
    """Compute it as if it grew with the work of each node: an over-estimate, so that shrinking is
    careful."""
    if latency > target:
        return math.ceil(ready * min(latency / target, MOST_GROWTH))
    return min(ready, math.ceil(ready * latency / (MARGIN * target)))


def _with_peak(
    before: Scale, needed: int, now: float, idle_seconds: float
) -> tuple[tuple[float, int], ...]:
    """Return the most needed in each slice of the last `idle_seconds`, with now."""
    peaks = before.peaks or ((now, before.replicas),)
    kept = [(at, number) for at, number in peaks if now - at < idle_seconds]
    slice_seconds = idle_seconds / NUM_SLICES
    if kept and now - kept[-1][0] < slice_seconds:
        at, number = kept[-1]
        return (*kept[:-1], (at, max(number, needed)))
    return (*kept, (now, needed))
