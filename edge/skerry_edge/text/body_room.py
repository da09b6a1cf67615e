"""How much memory large bodies take, and what is made of them. No I/O.

A body is in memory from its first byte on, and its client may take a minute over the last one; the
lists and objects in it may take thirty times as much, and stay until it is answered. Of that a
tenant has as much as two bodies that are the largest in all, and an edge as much as four such
tenants; whoever sends more is to come back.
"""

from __future__ import annotations

from collections import Counter

from skerry.errors import Overloaded, RateLimited

TENANT_BYTES = 128 << 20
MAX_BYTES = 512 << 20  # of all tenants
RETRY_SECONDS = 1.0


class BodyRoom:
    """The memory that tenants' bodies take. Belongs to one event loop."""

    def __init__(self, tenant_bytes: int = TENANT_BYTES, max_bytes: int = MAX_BYTES) -> None:
        """A tenant has at most `tenant_bytes`, all together `max_bytes`."""
        self._tenant_bytes = tenant_bytes
        self._max_bytes = max_bytes
        self._held: Counter[str] = Counter()
        self._total = 0

    def take(self, tenant: str, size: int) -> None:
        """Hold `size` bytes more. Raises `RateLimited` for a tenant that takes too much, and
        `Overloaded` where all do."""
        if self._held[tenant] + size > self._tenant_bytes:
            raise RateLimited(
                f"Requests of this account that are on their way take {self._tenant_bytes >> 20} "
                "MiB; wait for their answers.",
                retry_after=RETRY_SECONDS,
            )
        if self._total + size > self._max_bytes:
            raise Overloaded("Too many large requests are on their way.", retry_after=RETRY_SECONDS)
        self._held[tenant] += size
        self._total += size

    def give_back(self, tenant: str, size: int) -> None:
        """Let go of what `take` took."""
        self._total -= size
        self._held[tenant] -= size
        if self._held[tenant] <= 0:
            del self._held[tenant]
