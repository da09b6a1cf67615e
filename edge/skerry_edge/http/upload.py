"""The body of one request on its way, and whether it comes fast enough."""

from __future__ import annotations

from skerry_edge.http.body import body_of
from skerry_edge.limits import Limits


class Upload:
    """Since `began` (seconds, as are all times here)."""

    def __init__(self, size: int | None, target: bytes, limits: Limits, began: float) -> None:
        """`size` is a head's `body_size`."""
        self._body = body_of(size, limits.body_limit(target))
        self._limits = limits
        self._began = began
        self._received = 0  # bytes

    @property
    def is_whole(self) -> bool:
        return self._body.is_whole

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the body's part of `data`, and what follows. Raises `BodyRefused`."""
        part, rest = self._body.take(data)
        self._received += len(part)
        return part, rest

    def is_too_slow(self, now: float) -> bool:
        """Return whether it is not waited for any longer."""
        elapsed, limits = now - self._began, self._limits
        is_slow = self._received < limits.body_bytes_per_second * elapsed
        return elapsed > limits.body_seconds or (is_slow and elapsed > limits.body_grace_seconds)
