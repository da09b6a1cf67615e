"""The autoscaler in a world, cold starts, and how long nodes were paid for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from skerry_regions.control.desired.resources import PoolSpec
from skerry_regions.control.planning.autoscaler import (
    LATENCY_WINDOW,
    PoolDemand,
    Scale,
    decide,
)
from skerry_regions.routing.fast.compiled import Floats
from skerry_regions.routing.fast.laws import PER_PAIR
from skerry_regions.twin.kernel import state
from skerry_regions.twin.scenario import SimulatedPool
from skerry_regions.twin.world import Built

DECIDE_SECONDS = 5.0  # between two decisions
State = Literal["off", "starting", "ready", "draining"]


class Scaling:
    """Decides for each autoscaled pool as the control plane does (`planning.autoscaler`)."""

    def __init__(self, built: Built, at: Callable[[float, Callable[[float], None]], None]) -> None:
        """`at` has something called at a time of the virtual clock."""
        self._built, self._at = built, at
        self.seconds = np.zeros(built.num_nodes)  # that each node was paid for
        ready = [bool(up) for up in built.world.nodes.up[: built.num_nodes]]
        self._states: list[State] = ["ready" if up else "off" for up in ready]
        self._since = np.zeros(built.num_nodes)
        self._scales: dict[int, Scale] = {}  # by a pool's first slot
        self._itl_before: dict[int, np.ndarray] = {}
        self._recent = 0  # earlier requests are over, and had their first tokens long ago
        for pool, slots in self._pools():
            if pool.max_replicas is not None:
                self._scales[slots.start] = Scale(pool.replicas)
                at(DECIDE_SECONDS, lambda now, p=pool, s=slots: self._decide(p, s, now))  # type: ignore[misc]

    def paid(self, now: float) -> Floats:
        """Return for how many seconds each node was paid so far."""
        runs = np.array([status != "off" for status in self._states])
        return self.seconds + np.where(runs, np.maximum(now - self._since, 0.0), 0.0)

    def end(self, now: float) -> None:
        """Count what still runs."""
        self.seconds = self.paid(now)

    def _pools(self) -> list[tuple[SimulatedPool, range]]:
        found, slot = [], 0
        while slot < self._built.num_nodes:
            pool = self._built.pools[slot]
            found.append((pool, range(slot, slot + pool.most)))
            slot += pool.most
        return found

    def _decide(self, pool: SimulatedPool, slots: range, now: float) -> None:
        for slot in slots:
            if self._states[slot] == "draining" and self._is_idle(slot):
                self._stop(slot, now)
        before = self._scales[slots.start]
        scale = self._scales[slots.start] = decide(
            _spec(pool), self._demand(pool, slots, now), before, now
        )
        running = [s for s in slots if self._states[s] in ("starting", "ready")]
        for slot in list(reversed(running))[: max(len(running) - scale.replicas, 0)]:
            self._drain(slot, now)
        idle = [s for s in slots if self._states[s] == "draining"]
        off = [s for s in slots if self._states[s] == "off"]
        for slot in (idle + off)[: max(scale.replicas - len(running), 0)]:
            self._start(slot, pool, now)
        self._at(now + DECIDE_SECONDS, lambda then: self._decide(pool, slots, then))

    def _start(self, slot: int, pool: SimulatedPool, now: float) -> None:
        if self._states[slot] == "draining":  # it is there still
            self._states[slot] = "ready"
            self._built.mark(slot, True)
            self._built.mark_regions()
            return
        self._states[slot], self._since[slot] = "starting", now
        self._at(now + pool.start_seconds, lambda _: self._ready(slot))

    def _ready(self, slot: int) -> None:
        if self._states[slot] == "starting":
            self._states[slot] = "ready"
            self._built.set_up(slot, True)
            self._built.mark_regions()

    def _drain(self, slot: int, now: float) -> None:
        if self._states[slot] == "starting":
            self._stop(slot, now)
            return
        self._states[slot] = "draining"
        self._built.mark(slot, False)
        self._built.mark_regions()

    def _stop(self, slot: int, now: float) -> None:
        self._states[slot] = "off"
        self.seconds[slot] += now - self._since[slot]
        self._built.set_up(slot, False)
        self._built.forget_blocks(slot)

    def _is_idle(self, slot: int) -> bool:
        nodes = self._built.world.nodes
        return not (nodes.num_waiting[slot] or nodes.num_streams[slot] or nodes.num_joining[slot])

    def _demand(self, pool: SimulatedPool, slots: range, now: float) -> PoolDemand:
        world, own = self._built.world, slice(slots.start, slots.stop)
        nodes, requests = world.nodes, world.requests
        region = int(nodes.region[slots.start])
        law = pool.speed.as_speed()
        waiting = nodes.waiting[own]
        recent = self._look_back(now)
        seconds, arrival = requests.first_token[recent], requests.arrival[recent]
        here = (requests.decode[recent] >= slots.start) & (requests.decode[recent] < slots.stop)
        fresh = here & (arrival + np.nan_to_num(seconds, nan=-1e18) > now - LATENCY_WINDOW)
        held = (requests.phase[recent] == state.ON_ITS_WAY) & (requests.region[recent] == region)
        is_empty = not any(self._states[slot] == "ready" for slot in slots)
        return PoolDemand(
            ready=sum(self._states[slot] == "ready" for slot in slots),
            streams=int((nodes.num_streams[own] + nodes.num_joining[own]).sum()),
            held=int(held.sum()) if is_empty else 0,
            queue_seconds=float(
                waiting[:, 0].sum() * law.per_token
                + waiting[:, 1].sum() * nodes.truth[slots.start, PER_PAIR]
            ),
            ttft=float(np.quantile(seconds[fresh], 0.95)) if fresh.any() else None,
            itl=self._itl(region, slots.start),
        )

    def _look_back(self, now: float) -> slice:
        """Return the requests of the last while, without the first of them that are long over."""
        requests = self._built.world.requests
        came = int(self._built.world.clock.numbers[state.NEXT])
        longest = now - 10 * LATENCY_WINDOW
        first = max(self._recent, int(np.searchsorted(self._built.workload.arrivals, longest)))
        seen = slice(first, came)
        phase, at = requests.phase[seen], requests.arrival[seen] + requests.first_token[seen]
        is_over = (phase == state.FAILED) | ((phase == state.DONE) & (at <= now - LATENCY_WINDOW))
        left = np.flatnonzero(~is_over)
        self._recent = first + (int(left[0]) if len(left) else len(is_over))
        return slice(self._recent, came)

    def _itl(self, region: int, key: int) -> float | None:
        """Return the p95 of steps since the last decision."""
        counts = self._built.world.regions.itl[region]
        fresh = counts - self._itl_before.get(key, 0.0)
        self._itl_before[key] = counts.copy()
        return itl_quantile(fresh, 0.95)


def itl_quantile(counts: Floats, share: float) -> float | None:
    """Return a quantile of seconds between tokens, within 5 %, by counts in `Regions.itl`'s
    buckets; None of nothing."""
    if counts.sum() <= 0:
        return None
    bucket = int(np.searchsorted(np.cumsum(counts), share * counts.sum()))
    return state.ITL_LEAST * state.ITL_RATIO**bucket


def _spec(pool: SimulatedPool) -> PoolSpec:
    return PoolSpec(
        name=pool.name,
        region=pool.region,
        role=pool.role,
        min_replicas=pool.min_replicas,
        max_replicas=pool.max_replicas,
        target_queue_seconds=pool.target_queue_seconds,
        target_ttft_seconds=pool.target_ttft_seconds,
        target_itl_seconds=pool.target_itl_seconds,
        idle_seconds=pool.idle_seconds,
    )
