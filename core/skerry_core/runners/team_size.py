"""How many threads the next step runs on: fewer while one of them has to share its core.

Threads meet some hundred times in a step, so one that waits for a core holds them all up. On one
thread less a step takes longer, but each may have a core. Two steps in a row have to show it: one
alone was the bad luck of a moment. All of them are tried again after a while, which grows as long
as trying is in vain. Who does what never changes a bit.
"""

from __future__ import annotations

_HELD_UP = 2  # steps in a row
_SHORTEST, _LONGEST = 0.02, 1.0  # seconds on fewer threads before one more is tried


class TeamSize:
    """Of the next step, from how the last ones went."""

    def __init__(self, most: int) -> None:
        self.now = most
        self.most = most
        self._held_up = 0  # steps in a row so far
        self._patience = _SHORTEST
        self._left = 0.0

    def note(self, took: float, lost: float) -> None:
        """Note the seconds that a step took, and those of them that a thread had no core."""
        if self.now > 1 and lost * self.now > took:  # one thread less costs this share at most
            self._held_up += 1
            if self._held_up == _HELD_UP:
                self._shrink()
            return
        self._held_up = 0
        if self.now < self.most:
            self._left -= took
            self.now += self._left <= 0
        else:
            self._patience = max(self._patience / 2, _SHORTEST)

    def _shrink(self) -> None:
        self.now -= 1
        self._held_up = 0
        self._left = self._patience
        self._patience = min(2 * self._patience, _LONGEST)
