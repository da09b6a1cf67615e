"""How many WebSockets are open, of each tenant and in all. No I/O."""

from __future__ import annotations

from collections import Counter

from skerry.errors import Overloaded, RateLimited

RETRY_SECONDS = 5.0


class SocketRoom:
    """The WebSockets of one edge. Belongs to one event loop."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    def enter(self, tenant: str, *, most: int, most_of_all: int) -> None:
        """Count one more. Raises `RateLimited` for a tenant that has `most`, `Overloaded` where
        all have `most_of_all`."""
        if self._held[tenant] >= most:
            raise RateLimited(
                f"This account has {most} WebSockets open; use their lanes, or close one.",
                retry_after=RETRY_SECONDS,
            )
        if self._held.total() >= most_of_all:
            raise Overloaded("Too many WebSockets are open.", retry_after=RETRY_SECONDS)
        self._held[tenant] += 1

    def leave(self, tenant: str) -> None:
        """Count one less."""
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
