"""How much of an allowance is used, and the headers that say how much is left of it."""

from __future__ import annotations

import math

from skerry_edge.gate.quotas import Allowance
from skerry_edge.gate.token_bucket import Bucket, Pace

RATE_HEADERS = tuple(
    f"x-ratelimit-{part}-{unit}"
    for part in ("limit", "remaining", "reset")
    for unit in ("requests", "tokens")
)


class AllowanceUse:
    """The use of one allowance: of a tenant, of a tenant and a model, or of a model."""

    def __init__(self) -> None:
        self.running = 0  # choices of requests
        self.pace = Pace()
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.concurrency: int | None = None

    def follow(self, allowance: Allowance, edges: int, now: float) -> None:
        """Apply this allowance from now on, or this edge's part of it."""
        self.requests = _bucket(self.requests, allowance.requests_per_minute, edges, now)
        self.tokens = _bucket(self.tokens, allowance.tokens_per_minute, edges, now)
        most = allowance.concurrency
        self.concurrency = None if most is None else max(1, most // edges)

    def refusal(self, tokens: int, choices: int, now: float) -> tuple[str, float] | None:
        """Return what is exceeded, and the seconds until it is not; None when there is room."""
        if self.concurrency is not None and self.running + choices > self.concurrency:
            return f"{self.concurrency} requests at once", self.pace.wait()
        return _exceeded("tokens", self.tokens, tokens, now)

    def refusal_on_arrival(self, now: float) -> tuple[str, float] | None:
        """Return the same of requests, whatever they use."""
        return _exceeded("requests", self.requests, 1, now)

    def arrive(self, now: float) -> None:
        """Count a request, before any work on it."""
        if self.requests is not None:
            self.requests.take(1, now)

    def enter(self, tokens: int, choices: int, now: float) -> None:
        """Count a request that was let in, and the most tokens that it can use."""
        self.running += choices
        if self.tokens is not None:
            self.tokens.take(tokens, now)

    def leave(self, unused_tokens: int, choices: int, now: float) -> None:
        """Count the end of a request, and give back what it did not use."""
        self.running -= choices
        self.pace.append(now)
        if self.tokens is not None:
            self.tokens.take(-unused_tokens, now)


def rate_headers(meters: list[AllowanceUse], now: float) -> dict[str, str]:
    """Return OpenAI's `x-ratelimit-…` headers, each of the meter that has least left."""
    headers: dict[str, str] = {}
    for name, buckets in (
        ("requests", [meter.requests for meter in meters]),
        ("tokens", [meter.tokens for meter in meters]),
    ):
        kept = [bucket for bucket in buckets if bucket is not None]
        if kept:
            tightest = min(kept, key=lambda bucket: bucket.left(now))
            headers |= {
                f"x-ratelimit-limit-{name}": f"{math.floor(tightest.limit)}",
                f"x-ratelimit-remaining-{name}": f"{max(0, math.floor(tightest.left(now)))}",
                f"x-ratelimit-reset-{name}": f"{tightest.seconds_to_full(now):.3f}s",
            }
    return headers


def _exceeded(
    what: str, bucket: Bucket | None, amount: int, now: float
) -> tuple[str, float] | None:
    """Return the rate that is exceeded, and seconds until it is not; None when there is room."""
    if bucket is None or not (wait := bucket.wait(amount, now)):
        return None
    return f"{bucket.limit:.12g} {what} per minute", wait


def _bucket(
    bucket: Bucket | None, per_minute: float | None, edges: int, now: float
) -> Bucket | None:
    """Return a bucket of that rate's part: a new one, or the one there was at a new rate."""
    if per_minute is None:
        return None
    part = per_minute / edges
    if bucket is None:
        return Bucket(part, now)
    if bucket.per_minute != part:
        bucket.set_rate(part, now)
    return bucket
