"""The event loop as plain Python: what compiled code would take minutes to be made for."""

from __future__ import annotations

import pytest
from tests.regions.twin.worlds import in_plain_python

SCRIPT = """
import json
from tests.regions.twin.worlds import pool, run, scenario, three_regions
from skerry_regions.twin.scenario import Failure, Law, SimulatedTraffic
from skerry_regions.twin.workload import Workload
from skerry_regions.twin.kernel import state
import numpy as np
none = np.zeros(2, np.int64)
two = Workload(np.array([0.0, 3.0]), np.array([10, 20]), np.array([4, 2]), none, none, none,
               np.zeros(0, np.uint64))
law = Law(base=1.0, per_token=0.01, per_stream=0.25, per_context=0.001, gap_seconds=9.0)
steps = run(scenario(pools=[pool(replicas=1, speed=law)]), two).built.world.requests
traffic = [SimulatedTraffic(regions={"a": 1.0, "b": 1.0}, rate=8.0, seconds=3.0, prefixes=2,
                   output_tokens=50, roam=0.3)]
failures = [Failure(at=1.0, seconds=1.0, node="a-p-0"), Failure(at=1.5, seconds=9.0, node="a-p-1")]
broken = run(three_regions(traffic=traffic, failures=failures)).built.world
names, uses = np.unique(broken.names & ~state.OWN, return_counts=True)
own = broken.names[broken.names & state.OWN != 0] & ~state.OWN
print(json.dumps({
    "own": [len(own), sorted(own.tolist()) == names[uses == 1].tolist()],
    "steps": (steps.arrival + steps.end).tolist(),
    "phases": sorted(set(broken.requests.phase.tolist())),
    "moved": int((broken.requests.attempt > 0).sum()),
    "abroad": int((broken.nodes.region[broken.requests.decode] != broken.requests.region).sum()),
    "left": int(broken.nodes.num_waiting.sum() + broken.nodes.num_streams.sum()),
    "hits": float(np.nansum(broken.requests.hit)),
}))
"""
DONE = 5


def test_the_loop_in_plain_python() -> None:
    """Steps by hand; and nodes that die while regions serve: nothing is lost."""
    found = in_plain_python(SCRIPT)
    prompt, alone = 1.1, [1.25 + 0.001 * context for context in (11, 12)]
    beside = 1.25 + 0.2 + 0.001 * 13  # the second one's prompt, and the first one's last token
    first = prompt + sum(alone) + beside
    assert found["steps"] == pytest.approx([first, first + 1.25 + 0.001 * 21])
    assert found["phases"] == [DONE]
    assert found["moved"] > 0
    assert found["abroad"] > 0  # both nodes of one region are away
    assert found["left"] == 0
    assert found["hits"] > 0
    own, are_those_of_one = found["own"]  # names that one request alone has
    assert own > 0
    assert are_those_of_one
