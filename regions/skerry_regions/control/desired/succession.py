"""One of several control planes: it follows the log until the lead is its own, then leads until it
is not.

    follow ──▶ the lease is free: take it ──▶ begin a term ──▶ lead ──▶ lost ──▶ follow

The lease says who is to try; the log, that only one can (`logged_store`). Lives on the event loop
of the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable

import msgspec
from msgspec import Struct

from skerry.errors import Unavailable
from skerry_regions.control.desired.logged_store import LoggedStore
from skerry_regions.control.errors import Busy
from skerry_regions.drivers.jetstream.leader_lease import RENEW_SECONDS, LeaderLease
from skerry_regions.process.cancellation import cancel_tasks
from skerry_regions.process.pauses import until_set

LOOK_SECONDS = 0.25  # between looks at the lease, and at the log, while another leads

logger = logging.getLogger(__name__)


class LeadingControl(Struct, frozen=True, kw_only=True):
    """What the lease says of its holder."""

    url: str  # of its API


class Succession:
    """See above. `is_leading` counts by our own clock: whoever was frozen does not lead."""

    def __init__(
        self,
        store: LoggedStore,
        lease: LeaderLease,
        followed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`followed` is called on a thread after each look at the log. Raises Busy."""
        self._store = store
        self._lease = lease
        self._followed = followed
        self._clock = clock
        self._read_at = clock()  # when all that there was had been read
        self._trouble = ""
        self.leader: LeadingControl | None = None  # another, as far as we know
        self.has_followed = False  # another one, or ourselves before

    @property
    def is_leading(self) -> bool:
        return self._store.term > 0 and self._lease.is_held

    @property
    def term(self) -> int:
        """Return the term that we lead in; 0 while we follow."""
        return self._store.term if self.is_leading else 0

    @property
    def sequence(self) -> int:
        """Return that of the last transaction that was read or written."""
        return self._store.sequence

    @property
    def seconds_behind(self) -> float:
        """Return seconds since all that there was had been read."""
        return self._clock() - self._read_at

    async def follow(self, stop: asyncio.Event) -> bool:
        """Read on until the lease is ours; False once `stop` is set before that.

        Raises NewerSchema or UnfitLog.
        """
        while not stop.is_set():
            try:
                await asyncio.to_thread(self._read_on)
                if await self._take():
                    return True
                self._trouble = ""
            except (Busy, Unavailable) as error:
                self._report(str(error))
            await until_set(stop, LOOK_SECONDS)
        return False

    async def _take(self) -> bool:
        holder = await self._lease.holder()
        if holder is None:
            self.leader = None
            return await self._lease.take()
        with contextlib.suppress(msgspec.MsgspecError):
            self.leader = msgspec.json.decode(holder.data, type=LeadingControl)
            self.has_followed = True
        return False

    @contextlib.asynccontextmanager
    async def leading(self, above: int) -> AsyncGenerator[asyncio.Event]:
        """Begin a term, and lead until the block ends; the event is set when the lead is lost.

        Raises Busy where another was faster, or UnfitLog.
        """
        lost = asyncio.Event()
        tasks = [asyncio.create_task(self._renew(lost), name="renew the lead")]
        try:
            await asyncio.to_thread(self._store.check_log)
            term = await asyncio.to_thread(self._store.next_term, above)
            self.leader = None
            self.has_followed = True
            logger.warning("this control plane leads, in term %d", term)
            tasks.append(asyncio.create_task(self._keep_up(lost), name="keep up with the log"))
            yield lost
        finally:
            self._store.resign()
            await cancel_tasks(*tasks)
            with contextlib.suppress(Unavailable):
                await self._lease.give_up()

    async def _renew(self, lost: asyncio.Event) -> None:
        try:
            while self._lease.is_held:
                await asyncio.sleep(RENEW_SECONDS)
                if not await self._lease.renew():
                    break
        finally:
            self._store.resign()
            lost.set()

    async def _keep_up(self, lost: asyncio.Event) -> None:
        """Look for whoever writes beside us, and keep pictures for those that begin."""
        try:
            while self._store.term:
                with contextlib.suppress(Busy):
                    await asyncio.to_thread(self._read_on)
                    await asyncio.to_thread(self._store.keep_picture)
                await asyncio.sleep(RENEW_SECONDS)
        except Exception:
            logger.exception("the log cannot be followed")
        finally:
            lost.set()

    def _read_on(self) -> None:
        began = self._clock()
        self._store.read_on()
        if not self._store.term:
            self._followed()
        self._read_at = began

    def _report(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            logger.warning("nobody is followed, and the lead is not taken: %s", trouble)
