"""What a run came to: latencies, shares, node hours and prices."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from skerry_regions.routing.fast.compiled import Floats
from skerry_regions.twin.kernel import state
from skerry_regions.twin.run import TwinRun
from skerry_regions.twin.scaling import itl_quantile

HOUR = 3600.0
T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # Student's t, by values - 2
NORMAL_95 = 1.96


class Figures(Struct, frozen=True, kw_only=True):
    """One run; times in seconds, of requests that were answered."""

    requests: int
    failed: int
    ttft_mean: float
    ttft_p50: float
    ttft_p95: float
    ttft_p99: float
    e2e_mean: float
    e2e_p50: float
    e2e_p95: float
    e2e_p99: float
    itl_p50: float
    itl_p99: float
    hit_share: float  # of prompt tokens, found cached
    split_share: float  # of placements: prefill and decode apart
    crossed_share: float  # of requests, served by another region than they came to
    node_hours: float
    cost: float  # of node hours, and of bytes between regions
    cost_per_million: float  # output tokens
    utilisation: float  # of the time that nodes were paid for, spent in steps
    seconds: float  # from the first arrival to the last token


def figures(run: TwinRun) -> Figures:
    """Return the figures of a run that is over."""
    built, world = run.built, run.built.world
    requests, numbers = world.requests, world.clock.numbers
    done = requests.phase == state.DONE
    first, end = np.sort(requests.first_token[done]), np.sort(requests.end[done])
    served = np.asarray(world.nodes.region)[requests.decode[done]]
    came = built.workload.regions[done]
    crossed = built.crossed * built.ways.prices / 1e9
    prices = np.array([pool.node_hour for pool in built.pools])
    paid = run.scaling.seconds
    cost = float((paid * prices).sum() / HOUR + crossed.sum())
    output = float(built.workload.outputs[done].sum())
    itl = np.asarray(world.regions.itl).sum(axis=0)
    hit = float(np.nansum(requests.hit[done]))
    return Figures(
        requests=len(requests.phase),
        failed=int((~done).sum()),
        ttft_mean=_mean(first), ttft_p50=_quantile(first, 0.5),
        ttft_p95=_quantile(first, 0.95), ttft_p99=_quantile(first, 0.99),
        e2e_mean=_mean(end), e2e_p50=_quantile(end, 0.5),
        e2e_p95=_quantile(end, 0.95), e2e_p99=_quantile(end, 0.99),
        itl_p50=itl_quantile(itl, 0.5) or 0.0, itl_p99=itl_quantile(itl, 0.99) or 0.0,
        hit_share=hit / max(float(built.workload.prompts[done].sum()), 1.0),
        split_share=int(numbers[state.NUM_SPLIT]) / max(len(requests.phase), 1),
        crossed_share=float((served != came).mean()) if len(served) else 0.0,
        node_hours=float(paid.sum()) / HOUR,
        cost=cost,
        cost_per_million=cost / output * 1e6 if output else 0.0,
        utilisation=float(run.busy_seconds / paid.sum()) if paid.sum() else 0.0,
        seconds=run.end,
    )  # fmt: skip


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean, and half of its 95 % interval (Student's t); None of a single value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    place = len(values) - 2
    t = T_95[place] if place < len(T_95) else NORMAL_95
    return mean, t * statistics.stdev(values) / len(values) ** 0.5


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else 0.0


def _quantile(ascending: Floats, share: float) -> float:
    """Return the quantile by nearest rank."""
    if not len(ascending):
        return 0.0
    return float(ascending[min(int(share * len(ascending)), len(ascending) - 1)])
