"""How often requests come, and how often they find their prefix cached."""

from __future__ import annotations

import math


class Traffic:
    """Of one model, over all edges whose bookings are heard."""

    def __init__(self, rate_seconds: float, reuse_tokens: float) -> None:
        self._rate_seconds, self._reuse_tokens = rate_seconds, reuse_tokens
        self._rate = 0.0  # arrivals per second, as of `_at`
        self._at = -math.inf
        self._cached = self._new = 0.0  # tokens, fading

    def count(self, now: float, prompt_tokens: int, cached_tokens: int) -> None:
        """Take in one request."""
        self._rate = self.arrivals(now) + 1 / self._rate_seconds
        self._at = max(now, self._at)  # others' come late
        keep = math.exp(-prompt_tokens / self._reuse_tokens)
        self._cached = self._cached * keep + cached_tokens
        self._new = self._new * keep + prompt_tokens - cached_tokens

    def arrivals(self, now: float) -> float:
        """Return the rate per second, with exponential forgetting."""
        return self._rate * math.exp(-max(0.0, now - self._at) / self._rate_seconds)

    @property
    def reuse(self) -> float:
        """Return times that a token, once stored, is found in a cache."""
        return self._cached / self._new if self._new else 0.0
