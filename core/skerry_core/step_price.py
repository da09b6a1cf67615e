"""What a token more costs in a step of streams, learned from the steps' times."""

from __future__ import annotations

_NEW = 0.05  # weight of the latest step
_BASE_TOKENS = 2.0
_PRIOR_VARIANCE = 0.5  # of n, as if seen
_MOST = 2.0  # times the expected seconds that are believed: beyond, somebody else had the CPU
_FLOOR = 1e-9  # seconds per token, for clocks that stand still


class StepPrice:
    """Seconds of a step of n tokens as a line through the recent ones: base + per_token * n.

    While all have the same n, a token more is taken to cost what it does where reading the weights
    is worth `_BASE_TOKENS` tokens of arithmetic.
    """

    def __init__(self) -> None:
        self._num_seen = 0
        self._n = self._s = self._nn = self._ns = 0.0  # moving means of n, seconds, n², n·seconds

    @property
    def per_token(self) -> float:
        """Seconds; before the first step only its ratio to `of` means something."""
        if not self._num_seen:
            return 1.0
        guess = self._s / (self._n + _BASE_TOKENS)
        variance = max(0.0, self._nn - self._n * self._n) + _PRIOR_VARIANCE
        covariance = self._ns - self._n * self._s + _PRIOR_VARIANCE * guess
        return min(max(covariance / variance, 0.25 * guess), self._s / self._n)

    def of(self, num_tokens: int) -> float:
        """Seconds of a step of so many tokens."""
        if not self._num_seen:
            return num_tokens + _BASE_TOKENS
        return max(self._s + (num_tokens - self._n) * self.per_token, num_tokens * _FLOOR)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from a step of streams alone."""
        if self._num_seen:
            seconds = min(seconds, _MOST * self.of(num_tokens))
        self._num_seen += 1
        new = max(_NEW, 1.0 / self._num_seen)
        self._n += new * (num_tokens - self._n)
        self._s += new * (seconds - self._s)
        self._nn += new * (num_tokens * num_tokens - self._nn)
        self._ns += new * (num_tokens * seconds - self._ns)
