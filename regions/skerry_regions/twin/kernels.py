"""What of the twin is compiled: for a cache of kernels, which whoever starts it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numba import typeof

from skerry_regions.routing.fast import kernels as routing
from skerry_regions.twin.kernel import (
    caches,
    engine,
    entries,
    heap,
    known,
    loop,
    placing,
    state,
    steps,
    summaries,
)
from skerry_regions.twin.scenario import (
    Law,
    Scenario,
    SimulatedPool,
    SimulatedRegion,
    SimulatedTraffic,
)
from skerry_regions.twin.ways import ways_of
from skerry_regions.twin.workload import Workload
from skerry_regions.twin.world import Built

SOURCES = (
    *routing.SOURCES, caches, engine, entries, heap, known, loop, placing, state, steps,
    summaries,
)  # fmt: skip
"""Modules whose code ends up in the kernels."""
CONSTANTS = routing.CONSTANTS


def kernels(variant: str) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return the functions, by name, and the types of what they are called with; those of the
    router's index too, which a twin fills."""
    scenario = Scenario(
        regions=[SimulatedRegion(name="r")],
        pools=[SimulatedPool(name="p", region="r", speed=Law(base=1.0, per_token=1.0))],
        traffic=[SimulatedTraffic(regions={"r": 1.0}, rate=1.0, limit=1)],
    )
    none = np.zeros(0, np.int64)
    workload = Workload(np.zeros(0), none, none, none, none, none, np.zeros(0, np.uint64))
    world = Built(scenario, workload, ways_of(scenario, Path())).world
    called: dict[Any, tuple[object, ...]] = {
        loop.advance: (world, 0.0),
        entries.push_event: (world.clock, 0.0, 0, 0, 0),
        entries.touch_slot: (world, 0, 0),
        entries.count_held: (world, 0, none),
        caches.mark_own: (workload.names, workload.names, np.zeros(0, np.uint8)),
    }
    own = {
        function.__name__: (function, tuple(typeof(each) for each in arguments))
        for function, arguments in called.items()
    }
    needed = ("move_entries", "move_pending", "remove_all")
    return own | {name: routing.kernels(variant)[name] for name in needed}
