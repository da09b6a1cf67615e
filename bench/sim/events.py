"""Virtual time: a heap of callbacks."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Events:
    """Runs callbacks in order of time; ties in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._scheduled = 0

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Call at `time`, or now if that has passed."""
        self._scheduled += 1
        heapq.heappush(self._heap, (max(time, self.now), self._scheduled, call))

    def run(self) -> None:
        """Until nothing is scheduled."""
        while self._heap:
            self.now, _, call = heapq.heappop(self._heap)
            call()
