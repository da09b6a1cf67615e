"""Which requests get a line in the access log: of those that anybody can make, a few a minute.

One connection without a token made 280 GB of lines a day. Metrics count every request all the same.
"""

from __future__ import annotations

from collections.abc import Callable

SECONDS = 60.0
PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
MAX_PROBES = 1  # lines, of each path, for probes that went well
MAX_REFUSED = 60  # lines, of all requests without a token


class SampledLines:
    """Lives on one event loop. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._seen: dict[str, int] = {}  # lines and what was left out, of this minute
        self._left_out: dict[str, int] = {}  # … and of the minute before

    def left_out(self, path: str, status: int) -> int | None:
        """Return None for a request without a line, else how many like it had none before it."""
        if status == 401:
            kind, most = "401", MAX_REFUSED
        elif path in PROBES and status == 200:
            kind, most = path, MAX_PROBES
        else:
            return 0
        if self._clock() - self._began >= SECONDS:
            self._began = self._clock()
            limits = {"401": MAX_REFUSED}
            self._left_out = {
                each: number - limits.get(each, MAX_PROBES)
                for each, number in self._seen.items()
                if number > limits.get(each, MAX_PROBES)
            }
            self._seen = {}
        self._seen[kind] = self._seen.get(kind, 0) + 1
        return self._left_out.pop(kind, 0) if self._seen[kind] <= most else None
