"""One run of one rule on one seed's requests."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from random import Random
from tempfile import gettempdir
from typing import Any

import msgspec

from bench.routing.sim.fleet import Fleet
from bench.routing.sim.peers import RULES
from bench.routing.sim.settings import SLOWER_PRIOR, Setting, law
from skerry_cli.composition.routing.twin_kernels import load_twin_kernels
from skerry_regions.twin.figures import Figures, figures
from skerry_regions.twin.kernel import state
from skerry_regions.twin.run import TwinRun
from skerry_regions.twin.scenario import Routing
from skerry_regions.twin.ways import ways_of
from skerry_regions.twin.workload import Workload
from skerry_regions.twin.world import Built

CACHE = Path(gettempdir()) / "skerry-bench-kernels"
OURS = "Skerry"
NARROW = f"{OURS}, published choices"  # no split of hybrids, no fetch
KNOWN = f"{OURS}, speeds known"  # as after some minutes of service
SPLIT = " + split"
OWN = {
    OURS: Routing(learn_from=SLOWER_PRIOR),
    KNOWN: Routing(),
    NARROW: Routing(split=False, fetch=False),
}


def load_kernels() -> None:
    """Compile or load the twin; a minute or two the first time."""
    load_twin_kernels(CACHE, lambda _what, _share: None)


@lru_cache(maxsize=8)
def workload(setting: Setting, seed: int) -> Workload:
    """All rules get the same one."""
    return setting.workload(seed)


def play(setting: Setting, policy: str, seed: int, edges: int = 1, **router: Any) -> Figures:
    """Run a rule of `peers.RULES`, one with `SPLIT` behind its name, or one of `OWN`, whose router
    may be changed."""
    return figures(run_of(setting, policy, seed, edges, **router))


def run_of(setting: Setting, policy: str, seed: int, edges: int = 1, **router: Any) -> TwinRun:
    """Likewise; return the run when it is over."""
    ours = OWN.get(policy)
    scenario = setting.scenario(seed, edges, msgspec.structs.replace(ours or Routing(), **router))
    built = Built(
        scenario, workload(setting, seed), ways_of(scenario, Path()),
        placement=state.BY_COST if ours else state.BY_CALLER,
    )  # fmt: skip
    built.begin()
    run = TwinRun(built)
    if ours:
        run.run()
    else:
        fleet = Fleet(run, law(setting.speed).as_speed(), Random(seed))
        run.run(RULES[policy.removesuffix(SPLIT)](fleet, policy.endswith(SPLIT)).place)
    return run
