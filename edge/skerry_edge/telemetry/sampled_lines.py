"""Which requests get a line in the access log: of those that anybody can make, a few a minute.

One connection without a token made 280 GB of lines a day. Metrics count every request all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

SECONDS = 60.0
PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
MAX_PROBES = 1  # lines, of each path, for probes that went well
MAX_REFUSED = 60  # lines, of all requests without a token
REFUSED = "401"
MOST = Counter(dict.fromkeys(PROBES, MAX_PROBES) | {REFUSED: MAX_REFUSED})


class SampledLines:
    """Lives on one event loop. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._seen = Counter[str]()  # lines and what was left out, of this minute
        self._left_out = Counter[str]()  # … and of the minute before

    def left_out(self, path: str, status: int) -> int | None:
        """Return None for a request without a line, else how many like it had none before it."""
        if status == 401:
            kind = REFUSED
        elif path in PROBES and status == 200:
            kind = path
        else:
            return 0
        if self._clock() - self._began >= SECONDS:
            self._began = self._clock()
            self._left_out = self._seen - MOST
            self._seen = Counter()
        self._seen[kind] += 1
        return self._left_out.pop(kind, 0) if self._seen[kind] <= MOST[kind] else None
