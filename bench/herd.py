"""Several edges in front of the same nodes: what it costs that each knows loads of some time ago.

    python -m bench.herd [--quick] [--seeds N] [--json FILE]

The simulator of `bench.simulate`: Mooncake's traces with their 3 s ticks spread, 8 hybrid nodes of
8,000 prompt tokens a second, speeds learned from a prior three times too slow. Each row against one
edge with the same reports and seed: the mean first token's ratio, its mean over seeds and the 95 %
interval (Student's t). `told`: edges tell each other what they send where, 5 or 20 ms later, and
count the arrivals of all, as the product does; `alone`: they do not.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from bench.measuring import machine, stats
from bench.sim.cluster import TRUTH, ClusterConfig, simulate
from bench.sim.edges import SkerryEdges
from bench.sim.traces import MOONCAKE_TICK, TraceRequest, mooncake, spread

SPEED = 8000
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
KNOWLEDGE = {"alone": None, "told after 5 ms": 0.005, "told after 20 ms": 0.02}


def first_tokens(
    trace: list[TraceRequest], edges: int, report_seconds: float, told: float | None, seed: int
) -> list[float]:
    """Seconds to each request's first token, sorted."""
    truth = replace(TRUTH, per_token=1 / SPEED, per_pair=1 / SPEED / 65_536)
    policy = SkerryEdges(
        Random(seed), truth.scaled(3), trace,
        edges=edges, report_seconds=report_seconds, told_seconds=told,
    )  # fmt: skip
    return sorted(simulate(ClusterConfig(truth=truth), policy, trace).ttft)


def interval(values: list[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval."""
    half = T_95[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return statistics.mean(values), half


def rows(quick: bool, seeds: int) -> Iterator[dict[str, Any]]:
    """One per trace, report period, number of edges and what they tell each other."""
    for name in ("synthetic",) if quick else ("synthetic", "conversation"):
        trace = spread(mooncake(name), Random(5), MOONCAKE_TICK)
        for period in (1.0,) if quick else (0.25, 1.0):
            one = {seed: first_tokens(trace, 1, period, None, seed) for seed in range(seeds)}
            for edges in (16,) if quick else (4, 16):
                for knowledge, told in KNOWLEDGE.items():
                    if quick and knowledge == "told after 20 ms":
                        continue
                    many = {
                        seed: first_tokens(trace, edges, period, told, seed)
                        for seed in range(seeds)
                    }
                    mean, half = interval(
                        [
                            statistics.mean(many[seed]) / statistics.mean(one[seed])
                            for seed in range(seeds)
                        ]
                    )
                    yield {
                        "trace": name,
                        "reports, s": period,
                        "edges": edges,
                        "knowledge": knowledge,
                        "ratio": mean,
                        "interval": half,
                        "one edge, s": statistics.mean(
                            statistics.mean(each) for each in one.values()
                        ),
                        "p50, s": statistics.mean(
                            stats.percentile(each, 0.5) for each in many.values()
                        ),
                        "p99, s": statistics.mean(
                            stats.percentile(each, 0.99) for each in many.values()
                        ),
                    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one trace, one period, 16 edges")
    parser.add_argument("--seeds", type=int, default=5, choices=range(2, 11))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(argv)
    console, done = Console(), []
    table = Table(title=f"mean first token by that of one edge, {options.seeds} seeds")
    for row in rows(options.quick, options.seeds):
        done.append(row)
        console.print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    for column in done[0]:
        table.add_column(column)
    for row in done:
        table.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()))
    console.print(table)
    stats.write(options.json, {"machine": machine.describe(), "rows": done})


if __name__ == "__main__":
    main()
