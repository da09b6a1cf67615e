"""Token buckets: how fast something may go on average, and how much of it at once. Pure.

Times are seconds on whatever clock the caller reads; they never go back.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

WINDOW_SECONDS = 60.0  # a full bucket holds what it gains in this time
ROUNDING = 1e-9  # relative: what floating point may lose on the way to "enough"


class Bucket:
    """Gains `per_minute` a minute and holds as much; begins full.

    In any stretch of t seconds no more than `per_minute * (1 + t / 60)` is taken, and the amount of
    one more request that was larger than the bucket.
    """

    __slots__ = ("_at", "_level", "per_minute")

    def __init__(self, per_minute: float, now: float) -> None:
        self.per_minute = per_minute
        self._level = per_minute
        self._at = now

    @property
    def limit(self) -> float:
        """Return the rate of which callers are told."""
        return self.per_minute

    def set_rate(self, per_minute: float, now: float) -> None:
        """Go on at another rate, with what is left of the old one."""
        self._level = min(self.left(now), per_minute)
        self._at = now
        self.per_minute = per_minute

    def left(self, now: float) -> float:
        """Return what is in it; less than 0 while a debt is being paid off."""
        gained = (now - self._at) * self.per_minute / WINDOW_SECONDS
        return min(self.per_minute, self._level + gained)

    def wait(self, amount: float, now: float) -> float:
        """Return seconds until `amount` may be taken; 0 when it may be taken now.

        More than the bucket holds may be taken of a full one, and leaves it in debt: else it could
        never be.
        """
        lacking = min(amount, self.per_minute) - self.left(now)
        if lacking <= self.per_minute * ROUNDING:
            return 0.0
        return lacking * WINDOW_SECONDS / self.per_minute

    def take(self, amount: float, now: float) -> None:
        """Take it, whether or not there is enough. A negative amount is given back."""
        self._level = min(self.per_minute, self.left(now) - amount)
        self._at = now

    def seconds_to_full(self, now: float) -> float:
        return (self.per_minute - self.left(now)) * WINDOW_SECONDS / self.per_minute


class Pace(deque[float]):
    """The last times at which places became free: `append` one to it."""

    SHORTEST, LONGEST = 1.0, 60.0  # seconds of advice
    WEIGHT = 0.1  # of the newest interval
    TIMES = 64  # that are kept: what is older weighs less than a hundredth

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(maxlen=self.TIMES)

    def wait(self) -> float:
        """Return the seconds until the next place is free, at the pace of late."""
        smoothed: float | None = None
        for before, after in pairwise(self):
            interval = after - before
            if smoothed is None:
                smoothed = interval
            else:
                smoothed += self.WEIGHT * (interval - smoothed)
        return math.ceil(min(self.LONGEST, max(self.SHORTEST, smoothed or 0.0)))
