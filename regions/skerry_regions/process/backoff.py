"""How long to wait before a process that ended is started again. Pure: time and chance come in."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Seconds. The first failure costs little, a crash loop is slowed down and stays bounded."""

    first: float = 0.1
    factor: float = 2.0
    most: float = 30.0
    jitter: float = 0.5  # up to this share of the delay is taken off, at random
    steady: float = 10.0  # who ran so long has recovered: the next failure is a first one
    crash_loop: int = 5  # failures in a row that are called a crash loop


class Backoff:
    """The failures in a row of one process, and what they cost."""

    def __init__(self, policy: RestartPolicy, rng: Random) -> None:
        self._policy = policy
        self._rng = rng
        self.failures = 0  # in a row

    @property
    def is_crash_loop(self) -> bool:
        return self.failures >= self._policy.crash_loop

    def failed(self, ran_seconds: float) -> float:
        """Note that it ended unasked after so long; seconds until the next start."""
        policy = self._policy
        if ran_seconds >= policy.steady:
            self.failures = 0
        delay = min(policy.first * policy.factor ** min(self.failures, 64), policy.most)
        self.failures += 1
        return delay * (1 - policy.jitter * self._rng.random())
