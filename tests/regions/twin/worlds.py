"""Small worlds for tests, and the twin's kernels, compiled once for all of them."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.regions.routing.kernels import CACHE

from skerry_cli.composition.routing.twin_kernels import load_twin_kernels
from skerry_regions.twin.run import TwinRun
from skerry_regions.twin.scenario import (
    Law,
    Scenario,
    SimulatedLink,
    SimulatedPool,
    SimulatedRegion,
    SimulatedTraffic,
)
from skerry_regions.twin.ways import ways_of
from skerry_regions.twin.workload import Workload, workload_of
from skerry_regions.twin.world import Built

ROOT = Path(__file__).parents[3]
GPU = Law(
    base=0.010,
    per_token=1 / 8000,
    per_pair=1 / 8000 / 65_536,
    per_stream=0.0003,
    per_context=4e-8,
    chunk_tokens=2048,
    gap_seconds=0.3,
)


@functools.cache
def load_kernels() -> None:
    """Compile or load them."""
    load_twin_kernels(CACHE, lambda _what, _share: None)


def pool(**changes: Any) -> SimulatedPool:
    """Return four nodes in `a`, or what is said otherwise."""
    given: dict[str, Any] = {"name": "p", "region": "a", "replicas": 4, "speed": GPU}
    return SimulatedPool(**given | changes)


def scenario(**changes: Any) -> Scenario:
    """Return one region and 20 s of requests, or what is said otherwise."""
    given: dict[str, Any] = {
        "regions": [SimulatedRegion(name="a", rtt=0.0)],
        "pools": [pool()],
        "traffic": [SimulatedTraffic(regions={"a": 1.0}, rate=8.0, seconds=20.0, prefixes=5)],
    }
    return Scenario(**given | changes)


def three_regions(**changes: Any) -> Scenario:
    """Return regions `a`, `b` and `c` with two nodes each."""
    given: dict[str, Any] = {
        "regions": [SimulatedRegion(name=name, edges=2) for name in "abc"],
        "pools": [pool(region=name, replicas=2) for name in "abc"],
        "links": [
            SimulatedLink(between=("a", "b"), rtt=0.080),
            SimulatedLink(between=("b", "c"), rtt=0.120),
            SimulatedLink(between=("a", "c"), rtt=0.200),
        ],
        "traffic": [
            SimulatedTraffic(
                regions={"a": 2.0, "b": 1.0, "c": 1.0}, rate=12.0, seconds=30.0, prefixes=8
            )
        ],
    }
    return scenario(**given | changes)


def run(given: Scenario, workload: Workload | None = None, **changes: Any) -> TwinRun:
    """Run a scenario to its end."""
    given = replace(given, **changes)
    requests = workload or workload_of(given, Path())
    built = Built(given, requests, ways_of(given, Path()))
    built.begin()
    done = TwinRun(built)
    done.run()
    return done


def in_plain_python(script: str, *arguments: str) -> Any:
    """Return what a script prints as JSON, in a process of its own that compiles nothing."""
    roots = ("", "regions", "core", "edge", "sdk")
    environment = os.environ | {
        "NUMBA_DISABLE_JIT": "1",
        "PYTHONPATH": os.pathsep.join(str(ROOT / root) for root in roots),
    }
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *arguments],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
