"""Mooncake's conductor and SkyWalker's load balancer, as published; and all rules by name."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from bench.routing.sim.fleet import Fleet, place_again
from bench.routing.sim.preble import Preble
from bench.routing.sim.rules import (
    AIBrix,
    Dynamo,
    LeastRequests,
    LeastTokens,
    LlmD,
    LlmDAffinity,
    LongestPrefix,
    PowerOfTwo,
    RoundRobin,
    Rule,
    SGLangCacheAware,
)
from skerry_regions.routing.fast.compiled import Int64s
from skerry_regions.twin.kernel import state


class Mooncake(Rule):
    """Algorithm 1 of Mooncake (FAST'25): the least of queue and prefill, with what is cached there,
    or, where the best holder has over `threshold` times as much, with a copy of that."""

    def __init__(self, fleet: Fleet, splits: bool, *, threshold: float) -> None:
        super().__init__(fleet, splits)
        self._threshold = threshold
        self._source: tuple[int, int] = -1, 0

    def pick(self) -> int:
        fleet, nodes = self.fleet, self.fleet.prefills
        held, queues = fleet.held, fleet.queue_seconds()
        holder = int(held.argmax())
        best, best_tokens = int(held[holder]), fleet.cached(holder)
        costs, copies = [], []
        for node in nodes.tolist():
            own = int(held[node])
            is_copied = best > self._threshold * own  # own = 0: infinitely many times as much
            tokens = best_tokens if is_copied else fleet.cached(node)
            seconds = queues[node] + fleet.seconds(fleet.prompt - tokens, tokens)
            if is_copied:
                moved = (best - own) * fleet.block_size * fleet.kv_bytes
                seconds += moved / fleet.bytes_per_second
            costs.append(seconds)
            copies.append(is_copied)
        chosen = fleet.least(nodes, np.array(costs))
        is_copied = copies[nodes.tolist().index(chosen)]
        self._source = (holder, best) if is_copied else (-1, 0)
        return chosen

    def fetch(self, prefill: int) -> tuple[int, int]:
        return self._source


class SkyWalker(Rule):
    """SkyWalker (arXiv 2505.24095v2): a queue at the balancer; its head is pushed to a replica
    whose own queue is empty, as its last report says and no request since: of these the best match
    above half of the prompt, else the one with fewest requests."""

    def __init__(self, fleet: Fleet, splits: bool) -> None:
        super().__init__(fleet, splits)
        self._queue: deque[int] = deque()
        self._is_ticking = False
        self._pushed = np.full(len(fleet.held), -np.inf)  # when, by node

    TICK_SECONDS = 0.010

    def pick(self) -> int | None:
        fleet = self.fleet
        if fleet.number not in self._queue:
            self._queue.append(fleet.number)
        free = self._free()
        if self._queue[0] != fleet.number or not len(free):
            if not self._is_ticking:
                self._is_ticking = True
                fleet.run.at(fleet.now + self.TICK_SECONDS, self._tick)
            return None
        self._queue.popleft()
        held = fleet.held[free]
        if held.max() > 0.5 * max(fleet.blocks, 1):
            free = free[held == held.max()]
        chosen = self.fewest(free)
        self._pushed[chosen] = fleet.now
        return chosen

    def _free(self) -> Int64s:
        fleet, nodes = self.fleet, self.fleet.prefills
        is_empty = fleet.report(state.R_WAITING) == 0
        is_heard = self._pushed <= fleet.report(state.MADE_AT)
        return nodes[(is_empty & is_heard)[nodes]]

    def _tick(self, now: float) -> None:
        """Look at the head."""
        self._is_ticking = bool(self._queue)
        if not self._queue:
            return
        is_free = len(self._free()) > 0
        if is_free:
            place_again(self.fleet.run, self._queue[0], now)
        self.fleet.run.at(now + (1 if is_free else 5) * self.TICK_SECONDS, self._tick)


MakeRule = Callable[[Fleet, bool], Rule]
RULES: dict[str, MakeRule] = {
    "round robin": RoundRobin,
    "least requests": LeastRequests,
    "power of two": PowerOfTwo,
    "least tokens": LeastTokens,
    "longest prefix": LongestPrefix,
    "SGLang cache-aware": SGLangCacheAware,
    "AIBrix prefix-cache": AIBrix,
    "llm-d scorers": LlmD,
    "llm-d affinity filter": LlmDAffinity,
    "Dynamo kv-router": Dynamo,
    "Preble E2": Preble,
    "Mooncake conductor, 1.5": partial(Mooncake, threshold=1.5),
    "Mooncake conductor, 2": partial(Mooncake, threshold=2.0),
    "Mooncake conductor, 4": partial(Mooncake, threshold=4.0),
    "SkyWalker": SkyWalker,
}
