"""Limits in parts of edges everywhere: a record for each on NATS servers, of which each edge has a
part without a round trip.

RateUse ──▶ EdgeShare (`rate_parts.py`)
   └──▶ keeper ──▶ stream `rates`: r.TENANT.MODEL, changed by compare-and-set; e.LIFE, signs of life
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Callable, Sequence

import msgspec

from skerry.errors import Unavailable
from skerry_edge.gate.allowance_use import AllowanceUse
from skerry_edge.gate.meters import Key
from skerry_edge.shared.rate_parts import EdgeShare, RateRecord
from skerry_edge.shared.rate_use import LOOK_SECONDS, RateUse
from skerry_regions.drivers.jetstream.follower import StreamFollower
from skerry_regions.drivers.jetstream.record_worker import RecordWorker
from skerry_regions.drivers.jetstream.specs import key_of
from skerry_regions.drivers.jetstream.stream import KeyedStream, RevisionConflict, Stored, Write
from skerry_regions.process.cancellation import cancel_tasks

WAIT_SECONDS = 0.25  # that a request without a part waits
WRITE_SECONDS = 2.0
PAUSE_SECONDS = 0.2  # after a store that was away
CONTENTION_SECONDS = 0.002  # that who was too late waits at most
IDLE_SECONDS = 60.0  # after which a part goes back
FORGOTTEN_SECONDS = 120  # that a record is kept of which no edge has a part: its buckets are full
SIGN_SECONDS = 5.0  # between two signs of life
FRESH_SECONDS = 10.0  # since the last contact: else it is not the others who are away
CLOSE_SECONDS = 2.0

logger = logging.getLogger(__name__)
_decode = msgspec.msgpack.Decoder(RateRecord).decode


class NatsRates:
    """See `Rates`. Lives on one event loop."""

    def __init__(self, stream: KeyedStream, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is the admission's."""
        self.life = f"{int(time.time()):x}-{secrets.token_hex(6)}"  # of none before or after
        self.stream = stream
        self.clock = clock
        self._keepers: dict[str, RateKeeper] = {}  # of limits that are in use, by key
        self._heard_at: dict[str, float] = {}  # when each life was heard of
        self._follower = StreamFollower(stream, self._seen, self._lost, clock)
        self._follower.start()
        self._tasks = [
            asyncio.create_task(self._tend(), name="tend rates"),
            asyncio.create_task(self._live(), name="sign of life"),
        ]

    def use(self, key: Key) -> AllowanceUse:
        tenant, model = key
        return RateKeeper(self, f"r.{key_of(tenant or '*', model or '*')}").use

    async def ready(self, uses: Sequence[AllowanceUse]) -> None:
        lacking = [use.keeper for use in uses if isinstance(use, KeptUse) and not use.has_parts]
        if self.stream.jetstream.problem:  # none comes now
            for keeper in lacking:
                if keeper.use.is_known:
                    keeper.forget()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                for keeper in lacking:
                    await keeper.part_came()

    async def close(self) -> None:
        await cancel_tasks(*self._tasks)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*(each.give_all() for each in [*self._keepers.values()]))
        await asyncio.gather(*(each.end() for each in self._keepers.values()))
        await self._follower.close()

    def keeps(self, keeper: RateKeeper) -> None:
        """Pass on what other edges write to a keeper."""
        self._keepers[keeper.key] = keeper

    def unheard(self, record: RateRecord) -> dict[str, float]:
        """Return seconds since the lives of a record were heard of."""
        now = self.clock()
        if now - self._follower.contact_at > FRESH_SECONDS:
            return {}
        return {life: now - self._heard_at.setdefault(life, now) for life in record.edges}

    def _seen(self, stored: Stored) -> None:
        if stored.key.startswith("e."):
            self._heard_at[stored.key[2:]] = self.clock()
        elif (keeper := self._keepers.get(stored.key)) is not None:
            keeper.seen(stored)

    def _lost(self) -> None:
        for keeper in self._keepers.values():
            keeper.lost()

    async def _tend(self) -> None:
        """Look at who lacks what, and have parts that are not used go back."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = self.clock()
            for key, keeper in [*self._keepers.items()]:
                if now - keeper.use.used_at < IDLE_SECONDS or keeper.use.running:
                    keeper.look(now)
                elif keeper.is_idle:
                    keeper.forget()
                    del self._keepers[key]
                else:
                    keeper.stir(gives_all=True)

    async def _live(self) -> None:
        while True:
            sign = Write(f"e.{self.life}", b"", ttl_seconds=FORGOTTEN_SECONDS)
            with contextlib.suppress(Unavailable, RevisionConflict):
                await self.stream.write(sign, seconds=SIGN_SECONDS)
            await asyncio.sleep(SIGN_SECONDS)


class KeptUse(RateUse):
    """A use that knows its keeper."""

    def __init__(self, share: EdgeShare, keeper: RateKeeper) -> None:
        super().__init__(share, keeper.stir)
        self.keeper = keeper


class RateKeeper(RecordWorker):
    """Has the parts of one limit move: one change at a time, while there is one to make."""

    def __init__(self, rates: NatsRates, key: str) -> None:
        super().__init__(f"rates of {key}")
        self.key = key
        self.use = KeptUse(EdgeShare(rates.life), self)
        self._rates = rates
        self._must_read = True
        self._gives_all = False
        self._write: Write | None = None  # of which the outcome is not known
        self._came = asyncio.Event()
        self._num_waiting = 0

    async def part_came(self) -> None:
        """Wait until this edge has a part of all."""
        self._num_waiting += 1
        try:
            while not self.use.has_parts:
                self._came.clear()
                self.stir()
                await self._came.wait()
        finally:
            self._num_waiting -= 1

    def stir(self, *, gives_all: bool = False) -> None:
        self._gives_all = gives_all
        self._rates.keeps(self)
        self._stir()

    def look(self, now: float) -> None:
        if self.use.look(now) or self.use.share.others_lack or self._must_read:
            self.stir()

    def seen(self, stored: Stored) -> None:
        """Take over what somebody wrote: maybe somebody lacks what is not needed here."""
        share = self.use.share
        share.seen(_decode(stored.data), stored.sequence)
        self._settled((0, 0))
        if share.others_lack or not self.use.has_parts:
            self.stir(gives_all=self._gives_all)

    def lost(self) -> None:
        self.use.share.lost()
        self._must_read, self._write = True, None
        self._settled((0, 0))

    @property
    def is_idle(self) -> bool:
        return self._worker is None and self._write is None and not any(self.use.share.parts)

    def forget(self) -> None:
        """Discard what was read: changes are not received any more."""
        self._must_read = True
        self.use.unknown()

    async def give_all(self) -> None:
        self.stir(gives_all=True)
        await self._finish()

    async def _step(self) -> bool:
        try:
            if self._write is not None:
                await self._settle_write(self._write)
            elif self._must_read:
                self._read(await self._rates.stream.last(self.key))
            else:
                return self._plan()
        except Unavailable as error:
            logger.debug("rates of %s: %s", self.key, error)
            await asyncio.sleep(PAUSE_SECONDS)
            return self._write is not None or self._num_waiting > 0
        return True

    def _plan(self) -> bool:
        share, now = self.use.share, self._rates.clock()
        want = self.use.want(now, gives_all=self._gives_all)
        planned = share.plan(want, self._rates.unheard(share.record))
        if planned is None:
            return False
        record, lost = planned
        self.use.settle(lost, -1, now)
        ttl = None if record.edges else FORGOTTEN_SECONDS
        data = msgspec.msgpack.encode(record)
        self._write = Write(self.key, data, expected=share.revision, ttl_seconds=ttl)
        return True

    async def _settle_write(self, write: Write) -> None:
        """Write until the outcome is known. Raises `Unavailable`."""
        share = self.use.share
        try:
            sequence = await self._rates.stream.write(write, seconds=WRITE_SECONDS)
        except RevisionConflict as conflict:
            if self._write is write:
                self._write = None
                self._settled(share.found(*_record_of(conflict.found)))
            await asyncio.sleep(random.random() * CONTENTION_SECONDS)
        else:
            if self._write is write:
                self._write = None
                self._settled(share.stored(sequence))

    def _read(self, stored: Stored | None) -> None:
        self._must_read = False
        self.use.share.found(*_record_of(stored))
        self.use.known(self._rates.clock())
        self._settled((0, 0))

    def _settled(self, levels: tuple[int, int]) -> None:
        self.use.settle(levels, 1, self._rates.clock())
        if self.use.has_parts:
            self._came.set()


def _record_of(stored: Stored | None) -> tuple[RateRecord, int]:
    """Return a record and its revision."""
    return (RateRecord(), 0) if stored is None else (_decode(stored.data), stored.sequence)
