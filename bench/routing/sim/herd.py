"""Several edges in front of the same nodes, each of which knows loads of some time ago."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

from bench.routing.sim.play import OURS, play
from bench.routing.sim.settings import mooncakes
from skerry_regions.twin.figures import interval

SPEED = 8000
KNOWLEDGE = {"alone": None, "after 5 ms": 0.005, "after 20 ms": 0.02}


def edges_rows(quick: bool, seeds: int, pool: Executor) -> Iterator[dict[str, Any]]:
    """One per trace, report period, number of edges and what they tell each other."""
    for setting in mooncakes((SPEED,)):
        if setting.prefill or (quick and not setting.name.startswith("synthetic")):
            continue
        for period in (1.0,) if quick else (0.25, 1.0):
            cases = [("one", 1, None)] + [
                (knowledge, edges, told)
                for edges in ((16,) if quick else (4, 16))
                for knowledge, told in KNOWLEDGE.items()
            ]
            begun = {
                (knowledge, edges): [
                    pool.submit(
                        play, setting, OURS, seed, edges, report_seconds=period, told_seconds=told
                    )
                    for seed in range(seeds)
                ]
                for knowledge, edges, told in cases
            }
            found = {case: [each.result() for each in runs] for case, runs in begun.items()}
            one = found.pop(("one", 1))
            for (knowledge, edges), many in found.items():
                mean, half = interval(
                    [b.ttft_mean / a.ttft_mean for a, b in zip(one, many, strict=True)]
                )
                yield {
                    "trace": setting.name,
                    "reports, s": period,
                    "edges": edges,
                    "knowledge": knowledge,
                    "ratio": mean,
                    "interval": half,
                    "one edge, s": statistics.mean(each.ttft_mean for each in one),
                    "p50, s": statistics.mean(each.ttft_p50 for each in many),
                    "p99, s": statistics.mean(each.ttft_p99 for each in many),
                }
