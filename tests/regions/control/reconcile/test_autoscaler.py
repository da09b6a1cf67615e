"""`decide`: rules one by one, then a day of trace on a clock of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from skerry_regions.control.desired.resources import PoolSpec
from skerry_regions.control.planning.autoscaler import LATENCY_WINDOW, PoolDemand, Scale, decide


def pool(**more: Any) -> PoolSpec:
    values: dict[str, Any] = {
        "name": "p", "region": "fra", "role": "hybrid", "max_replicas": 8,
        "target_queue_seconds": 1.0, "target_ttft_seconds": 2.0, "target_itl_seconds": 0.1,
        "idle_seconds": 100.0,
    }  # fmt: skip
    return PoolSpec(**(values | more))


def after(seconds: float, demand: PoolDemand, scale: Scale, spec: PoolSpec) -> Scale:
    """The decision when it has been like that for so long, looked at every second."""
    for second in range(int(seconds) + 1):
        scale = decide(spec, demand, scale, 1000.0 + second)
    return scale


def test_a_held_request_wakes_a_pool_of_none() -> None:
    scale = decide(pool(), PoolDemand(held=1), Scale(0), 0.0)
    assert (scale.replicas, scale.reason) == (1, "1 requests wait for a first node")
    assert decide(pool(), PoolDemand(), Scale(0), 0.0).replicas == 0


def test_work_that_waits_is_to_be_done_within_the_target() -> None:
    demand = PoolDemand(ready=2, streams=9, queue_seconds=4.5)
    assert decide(pool(), demand, Scale(2), 0.0).replicas == 5


@pytest.mark.parametrize(
    ("role", "latency", "replicas"),
    [
        ("prefill", {"ttft": 3.0}, 6), ("prefill", {"ttft": 99.0}, 8), ("prefill", {"itl": 9.0}, 4),
        ("decode", {"itl": 0.15}, 6), ("decode", {"itl": 9.0}, 8), ("decode", {"ttft": 9.0}, 4),
        ("hybrid", {"ttft": 1.0, "itl": 0.12}, 5),
    ],
)  # fmt: skip
def test_each_role_follows_its_latency(role: str, latency: dict[str, Any], replicas: int) -> None:
    demand = PoolDemand(ready=4, streams=4, **latency)
    assert decide(pool(role=role), demand, Scale(4), 0.0).replicas == replicas


def test_latencies_of_fewer_nodes_do_not_grow_it_twice() -> None:
    spec = pool()
    slow = PoolDemand(ready=2, streams=9, itl=0.2)
    scale = decide(spec, slow, Scale(2), 0.0)
    assert scale.replicas == 4
    scale = decide(spec, slow, scale, 1.0)
    scale = decide(spec, PoolDemand(ready=4, streams=9, itl=0.2), scale, 2.0)
    assert scale.replicas == 4, "the p95 still looks back at two nodes"
    scale = decide(spec, PoolDemand(ready=4, streams=9, itl=0.2), scale, 2.0 + LATENCY_WINDOW)
    assert scale.replicas == 8


def test_it_shrinks_only_after_a_while_and_only_as_far_as_latencies_allow() -> None:
    spec, calm = pool(), PoolDemand(ready=4, streams=2, itl=0.03)
    assert after(99, calm, Scale(4), spec).replicas == 4
    assert after(111, calm, Scale(4), spec).replicas == 2
    tight = PoolDemand(ready=4, streams=2, itl=0.09)
    assert after(500, tight, Scale(4), spec).replicas == 4


def test_it_goes_to_none_but_not_below_its_least() -> None:
    assert after(111, PoolDemand(ready=2), Scale(2), pool()).replicas == 0
    assert after(111, PoolDemand(ready=2), Scale(2), pool(min_replicas=1)).replicas == 1
    assert after(500, PoolDemand(ready=1, streams=1), Scale(1), pool()).replicas == 1


def test_it_stays_within_its_limits() -> None:
    assert decide(pool(), PoolDemand(ready=1, queue_seconds=1e6), Scale(1), 0.0).replicas == 8
    assert decide(pool(min_replicas=3), PoolDemand(), Scale(0), 0.0).replicas == 3


# --- a day ---------------------------------------------------------------------------------------

CAPACITY = 2.0  # requests a second that one node serves
START_SECONDS = 40
DEADLINE = 120  # seconds that a request waits for a first node


@dataclass
class Day:
    """A pool in seconds: Poisson arrivals by the hour, nodes that take time to start and drain."""

    spec: PoolSpec
    rng: Random
    scale: Scale = field(default_factory=lambda: Scale(0))
    starting: list[int] = field(default_factory=list[int])  # when each will be ready
    ready: int = 0
    backlog: float = 0.0  # requests
    held: list[int] = field(default_factory=list[int])  # when each came
    arrived: int = 0
    late: int = 0  # waited longer than the TTFT target at a pool that was awake
    expired: int = 0
    waits: list[int] = field(default_factory=list[int])  # of held requests
    node_seconds: int = 0
    turns: int = 0  # from growing to shrinking or back
    direction: int = 0

    def second(self, now: int, rate: float) -> None:
        num_new = poisson(self.rng, rate)
        self.arrived += num_new
        self.ready += sum(at <= now for at in self.starting)
        self.starting = [at for at in self.starting if at > now]
        if not self.ready:
            self.held += [now] * num_new
            self.expired += sum(now - came > DEADLINE for came in self.held)
            self.held = [came for came in self.held if now - came <= DEADLINE]
        else:
            self.waits += [now - came for came in self.held]
            self.backlog += num_new + len(self.held)
            self.held = []
        served = min(self.backlog, self.ready * CAPACITY)
        self.backlog -= served
        wait = self.backlog / (self.ready * CAPACITY) if self.ready else 0.0
        if wait > self.spec.target_ttft_seconds:
            self.late += num_new
        busy = served / (self.ready * CAPACITY) if self.ready else 0.0
        self.decide(now, served, wait, busy)
        self.node_seconds += self.ready + len(self.starting)

    def decide(self, now: int, served: float, wait: float, busy: float) -> None:
        is_quiet = not served
        demand = PoolDemand(
            ready=self.ready,
            streams=math.ceil(served),
            held=len(self.held),
            queue_seconds=self.backlog / CAPACITY,
            ttft=None if is_quiet else 0.2 + wait,
            itl=None if is_quiet else 0.02 + 0.08 * busy,
        )
        before = self.scale.replicas
        self.scale = decide(self.spec, demand, self.scale, float(now))
        change = self.scale.replicas - before
        for _ in range(max(0, change)):
            self.starting.append(now + START_SECONDS)
        for _ in range(max(0, -change)):
            if self.starting:
                self.starting.pop()
            else:
                self.ready -= 1
        if change:
            direction = 1 if change > 0 else -1
            self.turns += direction != self.direction
            self.direction = direction


def poisson(rng: Random, rate: float) -> int:
    limit, number, product = math.exp(-rate), 0, rng.random()
    while product > limit:
        number, product = number + 1, product * rng.random()
    return number


def rate_at(hour: float) -> float:
    """Requests a second: nobody before six, a morning, a lunch, a peak at four, an evening."""
    if hour < 6:
        return 0.0
    return 4.0 * math.sin(math.pi * (hour - 6) / 18) ** 2 + (6.0 if 15 <= hour < 17 else 0.0)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))]
)
def test_a_day(seed: int) -> None:
    spec = pool(target_ttft_seconds=4.0, target_itl_seconds=0.1, idle_seconds=300.0)
    day = Day(spec, Random(seed))
    zero_at_night = True
    for now in range(24 * 3600):
        day.second(now, rate_at(now / 3600))
        zero_at_night &= now >= 6 * 3600 or day.scale.replicas == 0
    assert zero_at_night
    assert day.expired == 0, "who waited for a first node got one before the deadline"
    assert day.waits
    assert max(day.waits) <= START_SECONDS + 2
    assert day.late / day.arrived < 0.02
    ideal = sum(rate_at(second / 3600) / CAPACITY for second in range(24 * 3600))
    assert day.node_seconds < 3 * ideal
    assert day.node_seconds < 0.4 * 8 * 24 * 3600, "of what the most nodes would cost"
    assert day.turns < 60, "it does not flap"
