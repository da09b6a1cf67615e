"""Does the queue's work on what capacity interactive requests leave.

    lead, renew, tend ─▶ claim ─▶ execute ─▶ settle or defer ─▶ … ─▶ close ended batches

Of several edges one leads; when it dies its lease lapses, and another one goes on. At most
`max_in_flight` items run, fewer while interactive requests are in progress and none when there are
many; in the engine their scheduling class makes them give way within a step. A busy platform costs
an item no attempt, only time.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from skerry.errors import SkerryError, Unavailable
from skerry_edge.api.batch.execution import Answered
from skerry_edge.api.batch.wire import encode_reply
from skerry_edge.ledger.batches import Batches
from skerry_regions.process.cancellation import cancel_tasks
from skerry_regions.process.pauses import until_set
from skerry_regions.queue import LEASE_SECONDS, RENEW_SECONDS, BatchRecord, Claim, Settled

TEND_SECONDS = 10.0
BUSY_STATUSES = (429, 503)

Execute = Callable[[Claim], Awaitable[Answered]]
CloseOut = Callable[[BatchRecord], None]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settle:
    """An item is done."""

    state: Settled


@dataclass(frozen=True, slots=True)
class Defer:
    """An item is tried again after `seconds`; `counts`: as one of its attempts."""

    seconds: float
    counts: bool


def judge(answered: Answered, claim: Claim, longest_pause: float, jitter: float) -> Settle | Defer:
    """Return what an answer means for its item; `jitter` is in [0, 1)."""
    status = answered.reply.status
    if status in BUSY_STATUSES:
        asked = answered.headers.get("retry-after", "1")
        seconds = float(asked) if asked.isascii() and asked.isdigit() else 1.0
        return Defer(min(seconds, longest_pause), counts=False)
    if status == 408 or status >= 500:
        if claim.is_last:
            return Settle("dead")
        return Defer(min(2.0**claim.attempt, longest_pause) * (0.5 + jitter / 2), counts=True)
    return Settle("succeeded" if status < 400 else "failed")


class Dispatcher:
    """One edge's hand in the queue. `run` it as a task; `stop` gives everything back."""

    def __init__(
        self,
        batches: Batches,
        execute: Execute,
        close_out: CloseOut,
        *,
        models: Callable[[], frozenset[str]],
        in_progress: Callable[[], int],
        count: Callable[[str, str], None] = lambda model, outcome: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`models` are those that can be called now, `in_progress` the requests of this edge, its
        items among them. `close_out` is called on a thread, again if it fails. `count` is given the
        model and the outcome of each attempt."""
        self._queue = batches.queue
        self._limits = batches.limits
        self._wake = batches.submitted
        self._execute = execute
        self._close_out = close_out
        self._models = models
        self._in_progress = in_progress
        self._count = count
        self._clock = clock
        self._owner = uuid.uuid4().hex
        self._running: dict[int, asyncio.Task[None]] = {}  # by item
        self._leads = False
        self._beat_at = self._tend_at = self._paused_until = 0.0
        self._stopping = False

    @property
    def room(self) -> int:
        """Return how many more items may be claimed now."""
        interactive = max(0, self._in_progress() - len(self._running))
        most = self._limits.max_in_flight - self._limits.interactive_weight * interactive
        return 0 if self._clock() < self._paused_until else max(0, most - len(self._running))

    async def run(self) -> None:
        """Work until `stop`."""
        while not self._stopping:
            try:
                await self._turn()
            except SkerryError as error:  # the store cannot be used; leases show the others
                logger.warning("batches wait: %s", error)
                self._leads = False
            except Exception:  # a bug, which must not stop the others' batches for good
                logger.exception("batches wait")
                self._leads = False
            await self._rest()

    async def stop(self, running: asyncio.Task[None]) -> None:
        """Break off what runs and give it back; `running` is the task of `run`."""
        self._stopping = True
        self._wake.set()
        await running
        await cancel_tasks(*self._running.values())
        if self._leads:
            try:
                await asyncio.to_thread(self._queue.release, self._owner)
            except SkerryError as error:
                logger.warning("leases of batches were not given back: %s", error)

    async def _turn(self) -> None:
        self._wake.clear()
        now = self._clock()
        if now >= self._beat_at:
            self._beat_at = now + RENEW_SECONDS
            self._leads = await asyncio.to_thread(self._lead)
            await self._keep_leases()
        if now >= self._tend_at:
            self._tend_at = now + TEND_SECONDS
            await asyncio.to_thread(self._queue.tend)
        if not self._leads:
            return
        if room := self.room:
            models = self._models()
            for claim in await asyncio.to_thread(self._queue.claim, self._owner, models, room):
                self._start(claim)
        await asyncio.to_thread(self._close_ended)

    async def _rest(self) -> None:
        """Wait until something happens, or the next beat."""
        await until_set(self._wake, max(0.0, self._beat_at - self._clock()))

    def _lead(self) -> bool:
        return self._queue.has_work() and self._queue.lead(self._owner, LEASE_SECONDS)

    async def _keep_leases(self) -> None:
        """Renew them, and break off the items that were cancelled, or taken by another edge."""
        if not self._running:
            return
        before = dict(self._running)
        held = await asyncio.to_thread(self._queue.renew, self._owner, list(before), LEASE_SECONDS)
        for item, task in before.items():
            if item not in held:
                task.cancel()

    def _start(self, claim: Claim) -> None:
        task = asyncio.create_task(self._work(claim))
        self._running[claim.item] = task

        def over(task: asyncio.Task[None]) -> None:
            self._running.pop(claim.item, None)
            self._wake.set()
            if not task.cancelled() and (failure := task.exception()) is not None:
                # Its lease lapses, which counts as an attempt.
                logger.error("item %d of %s", claim.index, claim.batch, exc_info=failure)

        task.add_done_callback(over)

    async def _work(self, claim: Claim) -> None:
        answered = await self._execute(claim)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return  # the answer says no more than that
        verdict = judge(answered, claim, self._limits.longest_pause_seconds, random.random())
        match verdict:
            case Settle(state):
                self._count(claim.model, state)
                reply = encode_reply(answered.reply)
                await self._report(partial(self._queue.settle, claim, state, reply))
            case Defer(seconds, counts):
                self._count(claim.model, "deferred")
                if not counts:
                    self._paused_until = self._clock() + RENEW_SECONDS
                await self._report(partial(self._queue.defer, claim, seconds, counts=counts))

    async def _report(self, report: Callable[[], bool]) -> None:
        """Have the queue know what came of an item, if need be once it can be used again. When
        another worker has it by then, this one's is broken off."""
        while True:
            try:
                await asyncio.to_thread(report)
            except Unavailable:
                await asyncio.sleep(RENEW_SECONDS)
            else:
                return

    def _close_ended(self) -> None:
        for record in self._queue.ended():
            try:
                self._close_out(record)
            except Exception:
                logger.exception("batch %s is not closed yet", record.id)
            else:
                self._queue.close_batch(record.id)
