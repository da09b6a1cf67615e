"""A lease of the lead: one of several holds a key that the servers remove unless it is renewed.

The holder counts from before its request, the servers from when they stored it, so the holder's
time is over first, as long as clocks run at one rate. Whoever freezes wakes up without the lead.
That alone would not do: what it had under way is still sent. So a leader's writes have to be
refused by what they write to (`control.desired.logged_store`).
"""

from __future__ import annotations

from collections.abc import Callable

from skerry.errors import Unavailable
from skerry_regions.drivers.jetstream.stream import (
    KeyedStream,
    RevisionConflict,
    Stored,
    Write,
)
from skerry_regions.process.local_launcher import boot_time

LEASE_SECONDS = 3
RENEW_SECONDS = 1.0


class LeaderLease:
    """The lead of one key, of which others see `data`. Lives on the connection's event loop."""

    def __init__(
        self,
        stream: KeyedStream,
        key: str,
        data: bytes,
        *,
        seconds: int = LEASE_SECONDS,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._stream = stream
        self._key = key
        self._data = data
        self._seconds = seconds
        self._clock = clock
        self._sequence = 0
        self._until = 0.0

    @property
    def is_held(self) -> bool:
        """Return whether the lead is ours, by our own clock."""
        return self._clock() < self._until

    async def holder(self) -> Stored | None:
        """Return what the leader's record is; None where there is none. Raises `Unavailable`."""
        return await self._stream.last(self._key)

    async def take(self) -> bool:
        """Take the lead if it is free; return whether it is ours. Raises `Unavailable`."""
        return await self._write(0, self._seconds)

    async def renew(self) -> bool:
        """Keep the lead; False when it is over. A request without an answer is sent again."""
        try:
            return await self._write(self._sequence, self._until - self._clock())
        except Unavailable:
            return self.is_held

    async def give_up(self) -> None:
        """Have another lead at once. Raises `Unavailable`."""
        is_ours = self._until - self._clock() > self._seconds / 2  # it cannot be another's by then
        self._until = 0.0
        if is_ours:
            await self._stream.delete(self._key)

    async def _write(self, expected: int, seconds: float) -> bool:
        asked_at = self._clock()
        write = Write(self._key, self._data, expected, ttl_seconds=self._seconds)
        try:
            self._sequence = await self._stream.write(write, seconds=max(0.0, seconds))
        except RevisionConflict:
            self._until = 0.0
            return False
        self._until = asked_at + self._seconds
        return self.is_held
