"""Keeps one member's record in the registry while its process lives.

The registry may be away for as long as it likes: the record is written again when it is back. Its
calls may block, so they run on a thread.

Whoever starts takes its id from all before it, also where their clocks are ahead of ours. Whoever
has held it and finds it taken was replaced, as while it was frozen or cut off, and is to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable

from msgspec.structs import replace

from skerry_regions.process.pauses import until_set
from skerry_regions.registry import (
    LAST_INCARNATION,
    RENEW_SECONDS,
    Member,
    Registry,
    RegistryUnavailable,
)

logger = logging.getLogger(__name__)

LONGEST_PAUSE = 5.0  # seconds between renewals while each fails by a bug of ours
DRAWN_BITS = 20  # of an incarnation, below milliseconds


def new_incarnation(*, above: int = 0) -> int:
    """Return a number that grows from one start of a process to the next, whatever the
    hour says, and is another one for each process. `above` was held by another before."""
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return (max(now, (above >> DRAWN_BITS) + 1) << DRAWN_BITS) + secrets.randbits(DRAWN_BITS)


class Announcer:
    """Renews the lease of what `describe` says. Runs on the event loop that creates it."""

    def __init__(
        self,
        registry: Registry,
        describe: Callable[[], Member],
        *,
        replaced: Callable[[], None] = lambda: None,
        renew_seconds: float = RENEW_SECONDS,
    ) -> None:
        """`replaced` is called on the loop, once, when a later process has the id."""
        self._registry = registry
        self._describe = describe
        self._replaced = replaced
        self._incarnation = 0  # instead of the one described, where that was below another's
        self._has_held = False
        self._is_replaced = False
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
        member = self._described()
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
            await until_set(self._changed, pause)

    async def _announce(self) -> None:
        member = self._described()
        try:
            holder = await asyncio.to_thread(self._registry.announce, member)
            self._is_away = False
            self._learn(member, holder)
        except RegistryUnavailable as error:
            if not self._is_away:
                logger.warning("the registry is away: %s", error)
            self._is_away = True

    def _described(self) -> Member:
        member = self._describe()
        return replace(member, incarnation=max(member.incarnation, self._incarnation))

    def _learn(self, member: Member, holder: int) -> None:
        """Go above whoever held the id before us; end when somebody went above us."""
        if holder <= member.incarnation:
            self._has_held = True
        elif not self._has_held and holder < LAST_INCARNATION:
            self._incarnation = new_incarnation(above=holder)
            self._changed.set()
        elif not self._is_replaced:
            self._is_replaced = True
            logger.warning("%s runs elsewhere by now: ending here", member.id)
            self._replaced()
