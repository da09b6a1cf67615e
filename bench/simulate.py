"""Routing rules on public traces: who waits how long for a first token, on the same machines.

    python -m bench.simulate [--quick] [--json FILE]

A discrete-event simulation on a virtual clock (no GPU, no model; the same result on any machine).
Every policy routes the same requests at their native times over the same nodes with the same cost
model (`bench/sim/cluster.py`), once over hybrid nodes, once over separate prefill and decode pools.
Published rules are simplifications of what each system documents, not the systems. They see every
load and cache exactly and at once. Skerry starts with all speeds three times too slow and learns.
It may also split a request between hybrids, prefill on a decode node, and fetch a prefix from a
peer; a row without these freedoms shows what the cost alone is worth.

`hit` is the share of prompt tokens found cached; the heading gives what one infinite cache would
reach. TTFT includes queue, prefill, KV hand-over and the network; failed requests: none, no policy
sheds load.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from bench.measuring import machine, stats
from bench.sim.cluster import TRUTH, ClusterConfig, Outcome, Policy, simulate
from bench.sim.own_router import Skerry
from bench.sim.policies import RULES
from bench.sim.traces import TraceRequest, mooncake, reusable_share
from skerry_regions.speeds import NodeSpeed
from skerry_regions.view import Role


def nodes(role: Role, count: int) -> tuple[Role, ...]:
    return (role,) * count


POOLS = {
    "8 hybrid": nodes("hybrid", 8),
    "8 prefill + 4 decode": nodes("prefill", 8) + nodes("decode", 4),
}
SPEEDS = (6500, 8000, 10_000)  # prompt tokens per second of a node: the lower, the higher the load
TRACES = ("conversation", "synthetic")
OURS = "Skerry"
NARROW = f"{OURS}, published choices"  # no split of hybrids, no prefill on decode nodes, no fetch
METRICS = ("ttft_mean", "ttft_p90", "ttft_p99")  # where the target is to be best
GOOD_TTFT = 2.0  # seconds

MakePolicy = Callable[[Random, NodeSpeed], Policy]


@dataclass(frozen=True)
class Row:
    """One policy in one setting; times in seconds."""

    trace: str
    pools: str
    speed: int
    policy: str
    hit: float
    ttft_mean: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    within: float  # share of requests with a first token in `GOOD_TTFT`
    itl_p50: float
    itl_p99: float
    latency_mean: float


def policies() -> dict[str, MakePolicy]:
    """All by name; ours last."""
    return {name: _ignoring_speeds(make) for name, make in RULES.items()} | {
        NARROW: lambda rng, truth: Skerry(rng, truth.scaled(3), narrow=True),
        f"{OURS}, reports 1 s old": lambda rng, truth: Skerry(
            rng, truth.scaled(3), report_seconds=1.0
        ),
        OURS: lambda rng, truth: Skerry(rng, truth.scaled(3)),
    }


def _ignoring_speeds(make: Callable[[Random], Policy]) -> MakePolicy:
    return lambda rng, _: make(rng)


def measure(
    trace_name: str, trace: Sequence[TraceRequest], pools: str, speed: int
) -> Iterator[Row]:
    """One setting under every policy."""
    truth = replace(TRUTH, per_token=1 / speed, per_pair=1 / speed / 65_536)
    for name, make in policies().items():
        config = ClusterConfig(roles=POOLS[pools], truth=truth)
        outcome = simulate(config, make(Random(1), truth), trace)
        yield summary(outcome, trace=trace_name, pools=pools, speed=speed, policy=name)


def summary(outcome: Outcome, *, trace: str, pools: str, speed: int, policy: str) -> Row:
    ttft = sorted(outcome.ttft)
    return Row(
        trace=trace,
        pools=pools,
        speed=speed,
        policy=policy,
        hit=outcome.hit_share,
        ttft_mean=statistics.mean(ttft),
        ttft_p50=quantile(ttft, 0.5),
        ttft_p90=quantile(ttft, 0.9),
        ttft_p99=quantile(ttft, 0.99),
        within=sum(seconds <= GOOD_TTFT for seconds in ttft) / len(ttft),
        itl_p50=weighted_quantile(outcome.steps, 0.5),
        itl_p99=weighted_quantile(outcome.steps, 0.99),
        latency_mean=statistics.mean(outcome.latency),
    )


def quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)]


def weighted_quantile(values: Sequence[tuple[float, int]], q: float) -> float:
    """Of (value, count) pairs."""
    left = q * sum(count for _, count in values)
    for value, count in sorted(values):
        left -= count
        if left <= 0:
            return value
    raise ValueError("no values")


def best_published(rows: Sequence[Row], metric: str) -> Row:
    return min((row for row in rows if row.policy in RULES), key=lambda row: getattr(row, metric))


def ratios(rows: Sequence[Row]) -> dict[str, float]:
    """Our figure by the best published one, whoever that is, for each metric; below 1 is better."""
    ours = next(row for row in rows if row.policy == OURS)
    return {
        metric: getattr(ours, metric) / getattr(best_published(rows, metric), metric)
        for metric in METRICS
    }


def table(title: str, rows: Sequence[Row]) -> Table:
    result = Table(title=title)
    result.add_column("policy", no_wrap=True)
    for column in ("hit", "TTFT mean", "p50", "p90", "p99 s", "≤ 2 s"):
        result.add_column(column, justify="right")
    for column in ("ITL p50", "p99 ms", "latency s"):
        result.add_column(column, justify="right")
    for row in rows:
        result.add_row(
            row.policy,
            f"{row.hit:.1%}",
            *(f"{x:.2f}" for x in (row.ttft_mean, row.ttft_p50, row.ttft_p90, row.ttft_p99)),
            f"{row.within:.0%}",
            *(f"{x * 1e3:.1f}" for x in (row.itl_p50, row.itl_p99)),
            f"{row.latency_mean:.2f}",
            style="bold" if row.policy == OURS else None,
        )
    return result


def verdict(rows: Sequence[Row]) -> str:
    """Ours against the best published rule, metric by metric."""
    parts = []
    for metric, ratio in ratios(rows).items():
        peer = best_published(rows, metric)
        parts.append(f"{metric} {ratio:.2f} of {peer.policy}'s")
    return "; ".join(parts)


def settings(quick: bool) -> Iterator[tuple[str, str, int]]:
    for trace in ("synthetic",) if quick else TRACES:
        for pools in POOLS:
            for speed in (8000,) if quick else SPEEDS:
                yield trace, pools, speed


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one trace at one load")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(argv)
    console = Console()
    console = Console(width=max(console.width, 110))  # also where the output is piped
    traces = {name: mooncake(name) for name in TRACES}
    all_rows: list[Row] = []
    all_ratios: dict[str, dict[str, float]] = {}
    for name, pools, speed in settings(options.quick):
        rows = list(measure(name, traces[name], pools, speed))
        share = reusable_share(traces[name])
        title = f"{name}, {pools}, {speed} tokens/s (an infinite cache: {share:.1%})"
        console.print(table(title, rows))
        console.print(f"{OURS}: {verdict(rows)}\n")
        all_rows += rows
        all_ratios[f"{name}, {pools}, {speed}"] = ratios(rows)
    report: dict[str, Any] = {
        "machine": machine.describe(),
        "limits": {"virtual time": 1.0},
        "rows": [asdict(row) for row in all_rows],
        "ratios": {"best published rule": all_ratios},
    }
    stats.write(options.json, report)


if __name__ == "__main__":
    main()
