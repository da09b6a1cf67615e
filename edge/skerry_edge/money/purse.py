"""One payer's money at one edge: what requests spend at once, and a worker that has more come.

The worker runs while something is to be done: requests wait, the lease runs low, others lack what
is here, a write's outcome is unknown, the store has forgotten. It makes one change at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from skerry.errors import Unavailable
from skerry_edge.money.cap_record import CapRecord
from skerry_edge.money.caps import Caps
from skerry_edge.money.ceilings import RESTORE_SECONDS, Giving, Lease
from skerry_edge.money.spending import Kind
from skerry_regions.drivers.jetstream.record_worker import RecordWorker
from skerry_regions.drivers.jetstream.stream import KeyedStream, RevisionConflict, Stored, Write
from skerry_regions.process.pauses import until_set

RECALL_SECONDS = 0.25  # that a request waits for others to give back
READ_SECONDS = 2.0  # that a request waits for the store
AGAIN_SECONDS = 0.25  # until a lease is renewed again, or more is looked for where none was free
SETTLE_SECONDS = 0.02  # in which small amounts that come back gather
CONTENTION_SECONDS = 0.002  # that who was too late waits at most
PAUSE_SECONDS = 0.2  # after a store that was away

Periods = Callable[[], tuple[str, ...]]  # of now, and those that begin in a moment

logger = logging.getLogger(__name__)
_decode = msgspec.msgpack.Decoder(CapRecord).decode


class NoRoom(Exception):
    """A cap has no room for an amount."""


@dataclass(eq=False, slots=True)
class WaitingRequest:
    """A request that waits for money."""

    amount: int
    periods: tuple[str, ...]
    outcome: asyncio.Future[None]


class Purse(RecordWorker):
    """What one edge has of one payer's caps. Lives on one event loop."""

    def __init__(
        self,
        stream: KeyedStream,
        key: str,
        lease: Lease,
        caps: Caps,
        *,
        periods: Periods,
        edges: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(f"money of {key}")
        self.lease = lease
        self.caps = caps  # as the configuration has them
        self.used_at = clock()
        self.num_holds = 0
        self._stream = stream
        self._key = key
        self._periods = periods
        self._edges = edges
        self._clock = clock
        self.is_read = False
        self._must_read = True
        self._write: Write | None = None  # of which the outcome is not known
        self._waiting: deque[WaitingRequest] = deque()
        self._giving: Giving = "nothing"
        self._is_resting = False  # whether it is not renewed until a request spends
        self._renew_after = -float("inf")
        self._away_at = -float("inf")  # when the store last was
        self._empty_until = -float("inf")  # requests without money fail: others had none lately
        self._changed = asyncio.Event()  # the record, by somebody

    # --- what requests do: nothing is awaited unless there is no room -----------------------------

    async def spend(self, amount: int, periods: tuple[str, ...]) -> None:
        """Set an amount aside. Raises `NoRoom` or `Unavailable`."""
        self.used_at, self._is_resting = self._clock(), False
        if not self.is_read or not self.lease.spend(amount, periods):
            await self._wait_for(amount, periods)
        elif self._renew_after < self.used_at and self.lease.is_low(self._periods(), self.used_at):
            self._stir()
        self.num_holds += 1

    def settle(self, change: int, periods: tuple[str, ...]) -> None:
        """Count what a request did cost less, or more."""
        self.num_holds -= 1
        self.lease.add(change, periods)
        if self.is_read and self._is_lacked():
            self.give("surplus")

    def go_by(self, caps: Caps, by_kind: Mapping[Kind, int]) -> None:
        """Take over the configuration's caps, and say so where they are others than before."""
        self.caps = caps
        if self.lease.go_by(by_kind) and self.is_read:
            self.give("surplus")

    def give(self, giving: Giving) -> None:
        """Give back what is not needed, or all that is not spent."""
        if giving == "all" or self._giving == "nothing":
            self._giving = giving
        self._is_resting = self._is_resting or giving == "all"
        self._stir()

    def seen(self, stored: Stored) -> None:
        """Take over what somebody wrote: maybe somebody lacks what is not needed here."""
        self.lease.seen(_decode(stored.data), stored.sequence)
        self._changed.set()
        if not self.is_read:
            return
        periods = self._periods()
        if self.lease.is_to_give(periods, self._clock(), self._edges()):
            self.give("surplus")
        elif self.lease.is_forgotten(periods):
            self._stir()

    def lost(self) -> None:
        """Read the record again: the store was made again."""
        self.lease.lost(self._clock())
        self._must_read = True
        self._stir()

    @property
    def is_idle(self) -> bool:
        """Return whether nothing of it is under way or unspent."""
        has_room = self.is_read and self.lease.room(self._periods()) > 0
        return not (self._worker or self._waiting or self.num_holds or has_room)

    async def close(self) -> None:
        """Leave nothing unspent behind."""
        if self.is_read or self._write is not None:
            self.give("all")
        await self._finish()

    async def _wait_for(self, amount: int, periods: tuple[str, ...]) -> None:
        waiting = WaitingRequest(amount, periods, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._stir()
        outcome = waiting.outcome
        try:
            async with asyncio.timeout(READ_SECONDS):
                await outcome
        except BaseException as error:
            with contextlib.suppress(ValueError):
                self._waiting.remove(waiting)
            if outcome.done() and not outcome.cancelled() and outcome.exception() is None:
                self.lease.add(-amount, periods)  # it came for a request that is no more
            if isinstance(error, TimeoutError):
                raise Unavailable("NATS does not answer in time.") from None
            raise
        finally:
            del waiting, outcome  # whose error refers to this frame by its traceback

    # --- the worker -------------------------------------------------------------------------------

    def _failed(self, error: Exception) -> None:
        _fail(self._waiting, Unavailable(f"what is spent cannot be read: {error}"))

    async def _step(self) -> bool:
        try:
            if self._write is not None:
                await self._settle_write(self._write)
            elif self._must_read:
                self._read(await self._stream.last(self._key))
            elif self._grant():
                await self._ask_for_more()
            elif (giving := self._giving) != "nothing":
                self._giving = "nothing"
                await asyncio.sleep(SETTLE_SECONDS if giving == "surplus" else 0)
                await self._change(0, giving)
            elif self.lease.is_forgotten(self._periods()) or self._is_low():
                await self._change(0)
                self._renew_after = self._clock() + AGAIN_SECONDS
            else:
                return False
        except Unavailable as error:
            logger.debug("money of %s: %s", self._key, error)
            self._away_at = self._clock()
            await asyncio.sleep(PAUSE_SECONDS)
            is_lost = self.is_read and self._must_read
            return bool(self._waiting) or self._write is not None or is_lost
        return True

    def _is_lacked(self) -> bool:
        return self.lease.is_lacked(self._periods(), self._clock(), self._edges())

    def _is_low(self) -> bool:
        now = self._clock()
        if self._is_resting or now < self._renew_after:
            return False
        return self.lease.is_low(self._periods(), now)

    def _grant(self) -> int:
        """Let those in who fit, in order; return what the others need."""
        for waiting in [*self._waiting]:
            if waiting.outcome.done() or self.lease.spend(waiting.amount, waiting.periods):
                self._waiting.remove(waiting)
                if not waiting.outcome.done():
                    waiting.outcome.set_result(None)
        return sum([waiting.amount for waiting in self._waiting])

    async def _ask_for_more(self) -> None:
        """Have more for those who wait; refuse them where none comes, also from others."""
        asked = [*self._waiting]
        is_there = any(self.lease.may_have(each.amount, each.periods) for each in asked)
        if is_there or self._clock() >= self._empty_until:
            await self._change(self._grant())
            if self._write is not None:
                return
            if need := self._grant():
                await self._wait_for_others(need)
            if self._grant():  # refusals of others meanwhile do not put this off
                self._empty_until = self._clock() + AGAIN_SECONDS
        if self._write is None and self._grant():
            _fail(asked, NoRoom())
            self._grant()
            if self._is_lacked():
                self.give("surplus")

    async def _wait_for_others(self, need: int) -> None:
        """Say what is lacked, and wait a moment for what others give back. After the store was
        away, or has lost all, the moment begins once they can read it."""
        give_up = math.inf
        while True:
            back_at = max(self._away_at, self.lease.restored_at) + RESTORE_SECONDS
            is_read_by_others = self._clock() >= back_at
            await self._change(need)
            if not (need := self._grant()) or self._write is not None:
                return
            now = self._clock()
            give_up = min(give_up, now + RECALL_SECONDS) if is_read_by_others else math.inf
            if now >= give_up:
                return
            self._changed.clear()
            await until_set(self._changed, min(give_up - now, RECALL_SECONDS))

    async def _change(self, need: int, giving: Giving = "nothing") -> None:
        """Change the record, if there is something to change."""
        while True:
            least = min((each.amount for each in self._waiting), default=0)
            planned = self.lease.plan(
                self._periods(), need, self._clock(),
                least=least, giving=giving, edges=self._edges(),
            )  # fmt: skip
            if planned is None:
                return
            data = msgspec.msgpack.encode(planned)
            self._write = Write(self._key, data, expected=self.lease.revision)
            if await self._settle_write(self._write):
                return
            await asyncio.sleep(random.random() * CONTENTION_SECONDS)

    async def _settle_write(self, write: Write) -> bool:
        """Write until the outcome is known; whether it is in the record. Raises `Unavailable`."""
        try:
            sequence = await self._stream.write(write, seconds=READ_SECONDS)
        except RevisionConflict as conflict:
            is_stored = self.lease.found(*record_of(conflict.found))
        else:
            self.lease.stored(sequence)
            is_stored = True
        self._write = None
        if self.lease.is_lowered:  # by another, before the answer to this came
            self.give("surplus")
        return is_stored

    def _read(self, stored: Stored | None) -> None:
        if self.is_read:
            self.lease.found(*record_of(stored))
        else:
            self.lease.opened(*record_of(stored))
        self.is_read, self._must_read = True, False


def _fail(requests: Iterable[WaitingRequest], error: Exception) -> None:
    for waiting in requests:
        if not waiting.outcome.done():
            waiting.outcome.set_exception(error)


def record_of(stored: Stored | None) -> tuple[CapRecord, int]:
    """Return a record and its revision."""
    return (CapRecord(), 0) if stored is None else (_decode(stored.data), stored.sequence)
