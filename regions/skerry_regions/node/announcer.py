"""Keeps one member's record in the registry while its process lives.

The registry may be away for as long as it likes: the record is written again when it is back. Its
calls may block, so they run on a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from skerry_regions.registry import RENEW_SECONDS, Member, Registry, RegistryUnavailable

logger = logging.getLogger(__name__)

LONGEST_PAUSE = 5.0  # seconds between renewals while each fails by a bug of ours


def new_incarnation() -> int:
    """Return a number that grows from one start of a process to the next, whatever the
    hour says."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Announcer:
    """Renews the lease of what `describe` says. Runs on the event loop that creates it."""

    def __init__(
        self,
        registry: Registry,
        describe: Callable[[], Member],
        *,
        renew_seconds: float = RENEW_SECONDS,
    ) -> None:
        self._registry = registry
        self._describe = describe
        self._renew_seconds = renew_seconds
        self._changed = asyncio.Event()
        self._is_away = False
        self._is_over = False
        self._task = asyncio.create_task(self._renew(), name="announcer")

    def announce_now(self) -> None:
        """Do not wait for the next renewal: what is described has changed."""
        self._changed.set()

    async def withdraw(self) -> None:
        """Stop, and remove the record.

        A renewal that has begun is waited for: its thread cannot be stopped, and would write the
        record again.
        """
        self._is_over = True
        self._changed.set()
        await self._task
        member = self._describe()
        with contextlib.suppress(RegistryUnavailable):  # the lease ends by itself
            await asyncio.to_thread(self._registry.withdraw, member.id, member.incarnation)

    async def _renew(self) -> None:
        pause = self._renew_seconds
        while not self._is_over:
            self._changed.clear()
            try:
                await self._announce()
                pause = self._renew_seconds
            except Exception:  # whatever it is: this member's streams run on, and it must be found
                logger.exception("the record was not renewed; trying again")
                pause = max(self._renew_seconds, min(2 * pause, LONGEST_PAUSE))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), pause)

    async def _announce(self) -> None:
        try:
            await asyncio.to_thread(self._registry.announce, self._describe())
            self._is_away = False
        except RegistryUnavailable as error:
            if not self._is_away:
                logger.warning("the registry is away: %s", error)
            self._is_away = True
