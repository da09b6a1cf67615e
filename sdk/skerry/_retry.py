"""When to try again, and after how long. Pure: the clock and the randomness are arguments.

Full jitter (Brooker, "Exponential Backoff and Jitter", AWS 2015): a uniform draw between zero and
an exponentially growing bound keeps clients that failed together from coming back together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

from skerry.errors import SkerryError

Rng = Callable[[], float]
"""A draw from [0, 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How patient a client is."""

    max_retries: int = 2  # attempts after the first
    base: float = 0.5  # seconds; the first bound of the backoff
    cap: float = 8.0  # seconds; the last bound of the backoff
    patience: float = 60.0  # seconds; a platform that wants more gets its error raised instead

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ValueError(f"max_retries must be at least 0, got {self.max_retries}")


def next_delay(policy: RetryPolicy, error: SkerryError, attempt: int, rng: Rng) -> float | None:
    """Return seconds to wait before attempt `attempt + 1` (0 is the first try); None: raise
    `error`."""
    if attempt >= policy.max_retries or not error.retryable:
        return None
    backoff = rng() * min(policy.cap, policy.base * 2.0 ** min(attempt, 32))
    if error.retry_after is None:
        return backoff
    if error.retry_after > policy.patience:
        return None
    return error.retry_after + min(backoff, 0.25 * error.retry_after)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return seconds the platform wants waited; None when it does not say, or says nonsense.

    `retry-after-ms` wins over `retry-after`, which holds seconds or an HTTP date (RFC 9110,
    section 10.2.3). `headers` has lower-case keys; `now` is in Unix seconds.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    return seconds if seconds is not None else _until(value, now)


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """Return the platform's own word, `x-should-retry`; None when it has none."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _until(value: str | None, now: float) -> float | None:
    """Return seconds from `now` to an HTTP date; 0 when it has passed."""
    try:
        date = parsedate_to_datetime(value or "")
        return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)
    except (ValueError, OverflowError):
        return None
