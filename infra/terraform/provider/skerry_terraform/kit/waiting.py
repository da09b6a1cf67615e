"""Waiting for what happens elsewhere: with a deadline, stopped when Terraform is."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from skerry_terraform.kit.values import Value

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds
MAX_SECONDS = 7 * 86_400
_DURATION = re.compile(r"(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?")


class TimedOut(Exception):
    """It did not happen in time."""


class WaitInterrupted(Exception):
    """Terraform is winding up."""


def wait(
    poll: Callable[[], T | None],
    seconds: float,
    stop: threading.Event,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Return the first value that `poll` gives. Raises TimedOut or WaitInterrupted."""
    deadline = clock() + seconds
    pause = FIRST_PAUSE
    while (value := poll()) is None:
        left = deadline - clock()
        if left <= 0:
            raise TimedOut
        if stop.wait(min(pause, left)):
            raise WaitInterrupted
        pause = min(pause * 1.25, LONGEST_PAUSE)
    return value


def duration(text: str) -> float:
    """Return seconds of "1h30m", "10m" or "90s". Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(f"must be a duration such as 90s, 10m or 1h30m; got {text!r}")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = hours * 3600 + minutes * 60 + seconds
    if not 0 < total <= MAX_SECONDS:
        raise ValueError(f"must be above 0 and at most 168h; got {text!r}")
    return float(total)


def check_duration(value: Value) -> str | None:
    """Check a duration, for schemas."""
    try:
        duration(value)
    except ValueError as error:
        return str(error)
    return None
