"""SkyWalker over several regions (arXiv 2505.24095v2), on the twin.

A balancer in each region with a queue, of which only the head is looked at. It is pushed to a
replica whose own queue is empty, as its last report says and no request since: of these the best
match above half of the prompt, else the one with fewest requests. Where no replica here is free,
it goes to a balancer that is: whose queue is empty, and that has a free replica, as its reports of
half a round trip ago say; by the same rule, over what is known to be in that region. It is not
forwarded twice. (The later revision, in which idle balancers take from others, is not here.)
"""

from __future__ import annotations

from collections import deque

import numpy as np

from bench.routing.sim.fleet import place_again
from skerry_regions.routing.fast import arrays
from skerry_regions.routing.fast.compiled import Int64s
from skerry_regions.twin.kernel import state
from skerry_regions.twin.kernel.entries import count_held, push_event
from skerry_regions.twin.run import Choice, TwinRun

NOT_YET: Choice = (-1, -1, -1, 0, 0)
TICK_SECONDS, IDLE_TICK_SECONDS = 0.010, 0.050  # between looks at a head: free replicas, or none


class Balancers:
    """One in each region of a run."""

    def __init__(self, run: TwinRun) -> None:
        built, world = run.built, run.built.world
        self._run, self._num_nodes = run, built.num_nodes
        count = len(built.scenario.regions)
        self._queues: list[deque[int]] = [deque() for _ in range(count)]
        self._ticking = [False] * count
        self._forwarded: dict[int, int] = {}  # requests by where they were sent
        self._pushed = np.full(self._num_nodes, -np.inf)
        self._held = np.zeros(built.num_slots_used, np.int64)
        firsts = world.regions.first_slot
        self._slots = [np.arange(firsts[r], firsts[r + 1]) for r in range(count)]
        firsts = world.regions.first_edge
        self._edges = [slice(int(firsts[r]), int(firsts[r + 1])) for r in range(count)]
        self._reports = np.asarray(world.nodes.reports)[: self._num_nodes]
        self._phases = np.asarray(world.requests.phase)

    def place(self, number: int) -> Choice:
        """See `TwinRun.run`."""
        world = self._run.built.world
        now = float(world.clock.placed[state.PLACED_AT])
        here = int(world.edges.region[world.clock.numbers[state.PLACED_BY]])
        queue = self._queues[here]
        if number not in queue:
            queue.append(number)
        while self._phases[queue[0]] != state.ON_ITS_WAY:  # broke off as it waited
            queue.popleft()
        choice = self._pick(here, number, now) if queue[0] == number else None
        if choice is None:
            self._look_soon(here, now)
            return NOT_YET
        queue.popleft()
        return choice

    def _pick(self, here: int, number: int, now: float) -> Choice | None:
        world, blocks = self._run.built.world, int(self._run.built.workload.blocks[number])
        free = self._free(here, now, 0.0)
        if len(free):
            count_held(world, number, self._held)
            held = self._held[free]
            matched = free[held == held.max()] if held.max() > 0.5 * max(blocks, 1) else free
            sent = np.asarray(world.rows.active)[self._edges[here]].sum(axis=0)[matched]
            chosen = int(matched[sent.argmin()])
            self._pushed[chosen] = now
            self._forwarded.pop(number, None)
            size = int(world.weights.block_size)
            cached = min(int(self._held[chosen]) * size, int(world.requests.prompt[number]) - 1)
            return chosen, chosen, -1, 0, cached
        others = self._free_elsewhere(here, now)
        if number in self._forwarded or not others:
            return None
        count_held(world, number, self._held)
        held = self._held[[self._num_nodes + other for other in others]]
        if held.max() > 0.5 * max(blocks, 1):
            other = others[int(held.argmax())]
        else:
            away = list(self._forwarded.values())
            other = min(others, key=away.count)
        self._forwarded[number] = other
        return self._num_nodes + other, self._num_nodes + other, -1, 0, 0

    def _free(self, region: int, now: float, late: float) -> Int64s:
        """Replicas whose queue was empty in the last report that is `late` seconds old or more."""
        slots = self._slots[region]
        reports = self._reports[slots]
        old = reports[:, 0, state.MADE_AT] + late > now
        report = np.where(old[:, None], reports[:, 1], reports[:, 0])
        is_heard = (self._pushed[slots] <= report[:, state.MADE_AT]) | (late > 0)
        marks = self._run.built.world.rows.marks[region, slots]
        is_open = (marks[:, arrays.LIVE] != 0) & (marks[:, arrays.FLAGS] & arrays.CLOSED == 0)
        return slots[(report[:, state.R_WAITING] == 0) & is_heard & is_open]

    def _free_elsewhere(self, here: int, now: float) -> list[int]:
        rtts, marks = self._run.built.ways.rtts[here], self._run.built.world.rows.marks[here]
        return [
            other for other in range(len(self._queues))
            if other != here and not self._queues[other]
            and marks[self._num_nodes + other, arrays.FLAGS] & arrays.CLOSED == 0
            and len(self._free(other, now, float(rtts[other]) / 2))
        ]  # fmt: skip

    def _look_soon(self, region: int, now: float) -> None:
        if not self._ticking[region]:
            self._ticking[region] = True
            self._run.at(now + TICK_SECONDS, lambda then: self._tick(region, then))

    def _tick(self, region: int, now: float) -> None:
        """Look at the head."""
        queue, clock = self._queues[region], self._run.built.world.clock
        while queue and self._phases[queue[0]] != state.ON_ITS_WAY:
            self._forwarded.pop(queue.popleft(), None)
        self._ticking[region] = bool(queue)
        if not queue:
            return
        head = queue[0]
        is_here = head in self._forwarded
        is_free = len(self._free(region, now, 0.0)) > 0
        if not is_free and not is_here:
            is_free = bool(self._free_elsewhere(region, now))
        if is_free and is_here:
            subject = region * len(self._phases) + head
            attempt = int(self._run.built.world.requests.attempt[head])
            push_event(clock, now, state.FORWARDED, subject, attempt)
        elif is_free:
            place_again(self._run, head, now)
        wait = TICK_SECONDS if is_free else IDLE_TICK_SECONDS
        self._run.at(now + wait, lambda then: self._tick(region, then))
