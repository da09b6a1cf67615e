"""Runs a world: the compiled loop, and between its stretches what Python decides.

Failures and recoveries, learned speeds and the autoscaler act at times of their own; the loop runs
to the next of them.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from math import inf

import numpy as np

from skerry_regions.twin.breaking import Breaking
from skerry_regions.twin.kernel import state
from skerry_regions.twin.kernel.loop import advance
from skerry_regions.twin.learning import Learning
from skerry_regions.twin.scaling import Scaling
from skerry_regions.twin.world import Built

PROGRESS_SECONDS = 600.0  # of the virtual clock
Action = Callable[[float], None]
Choice = tuple[int, int, int, int, int]
"""Slots of prefill, decode and a peer to fetch from (or -1), blocks that it holds, tokens that are
thought to be cached. A prefill slot of -1: not yet; who chose has it placed once more, by an event
`state.AGAIN`."""


class TwinRun:
    """One run of one scenario."""

    def __init__(self, built: Built, progress: Callable[[float], None] = lambda _: None) -> None:
        """`progress` is called now and then with the share that is done."""
        self.built = built
        self._progress = progress
        self._actions: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()
        self.scaling = Scaling(built, self.at)
        Breaking(built, self.at)
        if built.scenario.router.learn_from is not None:
            Learning(built, self.at)
        self._told = 0

    def at(self, time: float, action: Action) -> None:
        """Call `action` at a time of the virtual clock, with that time."""
        heapq.heappush(self._actions, (time, next(self._numbers), action))

    def run(self, place: Callable[[int], Choice] | None = None) -> None:
        """Run to the end. `place`, of a request's number, decides where the world's placement is
        `state.BY_CALLER`."""
        built, last = self.built, max(self.built.workload.last, 1e-9)
        until = min(self._next(), PROGRESS_SECONDS)
        while True:
            why = advance(built.world, until)
            if why == state.WANTS_ROOM:
                built.grow()
            elif why == state.WANTS_PLACEMENT:
                assert place is not None
                number = int(built.world.clock.numbers[state.PLACED])
                built.world.clock.asked[:] = *place(number), 1
                until = min(until, self._next())
            else:
                if self._is_over():
                    break
                while self._actions and self._actions[0][0] <= until:
                    time, _, action = heapq.heappop(self._actions)
                    action(time)
                self._progress(min(until / last, 1.0))
                until = min(self._next(), until + PROGRESS_SECONDS)
        self.scaling.end(self.end)

    @property
    def end(self) -> float:
        """Return when the last request was over."""
        requests = self.built.world.requests
        ends = requests.arrival + np.nan_to_num(requests.end, nan=0.0)
        return float(ends.max(initial=0.0))

    @property
    def busy_seconds(self) -> float:
        """Return what all nodes' steps took together."""
        return float(np.asarray(self.built.world.nodes.busy).sum())

    def _next(self) -> float:
        return self._actions[0][0] if self._actions else inf

    def _is_over(self) -> bool:
        """Return whether all requests are done, or nothing is left that could go on."""
        clock, requests = self.built.world.clock, self.built.world.requests
        if clock.numbers[state.NEXT] < len(requests.phase):
            return False
        if clock.length[0] == 0 and not self._actions:
            return True
        first = self._told
        while first < len(requests.phase) and requests.phase[first] >= state.DONE:
            first += 1
        self._told = first
        return first == len(requests.phase)
