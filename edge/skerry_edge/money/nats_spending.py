"""Spending in a JetStream of many edges: each spends from leases of its own, without a round trip.

reserve ──▶ Purse ──▶ Lease (`ceilings.py`)
                └──▶ worker ──▶ stream `money`: a record for each payer, changed by compare-and-set
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping

from skerry.errors import QuotaExceeded, Unavailable
from skerry_edge.money.caps import Budget, Caps
from skerry_edge.money.ceilings import Lease
from skerry_edge.money.purse import NoRoom, Purse, record_of
from skerry_edge.money.seal import SEALED
from skerry_edge.money.spending import NANO, Hold, Kind, Period, exceeded, nano, periods_at
from skerry_regions.drivers.jetstream.follower import StreamFollower
from skerry_regions.drivers.jetstream.specs import key_of
from skerry_regions.drivers.jetstream.stream import KeyedStream, Stored
from skerry_regions.process.cancellation import cancel_tasks

IDLE_SECONDS = 60.0  # after which what is not spent goes back
TEND_SECONDS = 5.0
AHEAD_SECONDS = 60.0  # before a period begins its first lease is taken
OLDEST_SECONDS = 15 * 60.0  # that what was read last counts, while the store is away
MAX_PAYERS = 100_000
CLOSE_SECONDS = 5.0
CLOSES_AT_ONCE = 64

logger = logging.getLogger(__name__)


class NatsSpending:
    """See `Spending`."""

    def __init__(
        self,
        stream: KeyedStream,
        *,
        edges: Callable[[], int] = lambda: 1,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`edges` returns how many share the caps. `clock` is monotonic."""
        self._stream = stream
        self._edges = edges
        self._wall_clock = wall_clock
        self._clock = clock
        self._life = f"{int(time.time()):x}-{secrets.token_hex(6)}"  # of none before or after
        self._purses: dict[str, Purse] = {}  # by key
        self._periods: tuple[Period, Period] = periods_at(wall_clock())
        self._leased: tuple[str, ...] = ()
        self._periods_from = self._periods_until = 0.0  # Unix seconds in which these are so
        self._is_sealed = False
        self._follower = StreamFollower(stream, self._seen, self._lost, clock)
        self._follower.start()
        self._tending = asyncio.create_task(self._tend(), name="tend money")

    async def reserve(self, budgets: tuple[Budget, ...], dollars: float) -> Hold:
        if self._is_sealed:
            raise Unavailable("What is spent was copied back into a home, which counts it now.")
        amount, periods = nano(dollars), self._names()[:2]
        hold = Hold(tuple(each.id for each in budgets), periods, amount)
        spent: list[Purse] = []
        try:
            for budget in budgets:
                purse = self._purse(budget)
                await self._spend(purse, budget, amount, periods)
                spent.append(purse)
        except BaseException:
            for purse in spent:
                purse.settle(-amount, periods)
            raise
        return hold

    def settle(self, hold: Hold, dollars: float) -> None:
        for payer in hold.payers:
            if (purse := self._purses.get(key_of(payer))) is not None:
                purse.settle(nano(dollars) - hold.nanodollars, hold.periods)

    async def spent(self, payer: str) -> tuple[float, float]:
        """Return also what other edges may spend without a round trip."""
        day, month = self._names()[:2]
        purse = self._purses.get(key := key_of(payer))
        if purse is not None and purse.is_read:
            lease = purse.lease
            return lease.used(day) / NANO, lease.used(month) / NANO
        record, _ = record_of(await self._stream.last(key))
        return record.used(day) / NANO, record.used(month) / NANO

    async def close(self) -> None:
        """Give all back that is not spent, for as long as the store takes it."""
        await cancel_tasks(self._tending)
        gate = asyncio.Semaphore(CLOSES_AT_ONCE)

        async def close(purse: Purse) -> None:
            async with gate:
                await purse.close()

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*(close(purse) for purse in self._purses.values()))
        await asyncio.gather(*(purse.end() for purse in self._purses.values()))
        await self._follower.close()

    async def _spend(
        self, purse: Purse, budget: Budget, amount: int, periods: tuple[str, ...]
    ) -> None:
        """Set an amount aside in one budget. Raises `QuotaExceeded` or `Unavailable`."""
        if self._clock() - self._follower.contact_at > OLDEST_SECONDS and purse.is_read:
            raise Unavailable("What has been spent was last read too long ago.")
        try:
            await purse.spend(amount, periods)
        except NoRoom:
            raise self._exceeded(purse.lease, budget, amount) from None
        except Unavailable as error:
            raise Unavailable("What has been spent cannot be read now.") from error

    def _exceeded(self, lease: Lease, budget: Budget, amount: int) -> QuotaExceeded:
        """Return the error that names the cap with least room."""
        day, month = self._periods
        left = {each: lease.cap(each.name) - lease.used(each.name) for each in (day, month)}
        period = min(left, key=lambda each: left[each])
        cap, spent = lease.cap(period.name), lease.used(period.name)
        return exceeded(budget.payer, period, cap / NANO, spent, amount)

    def _purse(self, budget: Budget) -> Purse:
        """Return a payer's purse, which goes by the budget's caps. Raises `Unavailable`."""
        key = key_of(budget.id)
        purse = self._purses.get(key)
        if purse is None:
            if len(self._purses) >= MAX_PAYERS:
                raise Unavailable("Too many tokens with caps are in use at this edge.")
            lease = Lease(self._life, _by_kind(budget.caps))
            purse = self._purses[key] = Purse(
                self._stream, key, lease, budget.caps,
                periods=self._names, edges=self._edges, clock=self._clock,
            )  # fmt: skip
        elif purse.caps is not budget.caps:
            purse.go_by(budget.caps, _by_kind(budget.caps))
        return purse

    def _names(self) -> tuple[str, ...]:
        """Return the day and the month, and behind them those that begin in a moment."""
        now = self._wall_clock()
        if not self._periods_from <= now < self._periods_until:
            self._periods = periods_at(now)
            soon = periods_at(now + AHEAD_SECONDS)
            self._leased = tuple(dict.fromkeys(each.name for each in (*self._periods, *soon)))
            left = self._periods[0].seconds_left
            self._periods_from = now
            self._periods_until = now + (left if left <= AHEAD_SECONDS else left - AHEAD_SECONDS)
        return self._leased

    def _seen(self, stored: Stored) -> None:
        self._is_sealed = self._is_sealed or stored.key == SEALED
        if (purse := self._purses.get(stored.key)) is not None:
            purse.seen(stored)

    def _lost(self) -> None:
        for purse in self._purses.values():
            purse.lost()

    async def _tend(self) -> None:
        """Have idle leases go back, and forget who has nothing."""
        while True:
            await asyncio.sleep(TEND_SECONDS)
            self.tend()

    def tend(self) -> None:
        """Do it once."""
        for key, purse in list(self._purses.items()):
            if self._clock() - purse.used_at < IDLE_SECONDS:
                continue
            if purse.is_idle:
                del self._purses[key]
            else:
                purse.give("all")


def _by_kind(caps: Caps) -> Mapping[Kind, int]:
    """Return caps in nano-dollars, without what is unlimited."""
    told: tuple[tuple[Kind, float | None], ...] = (("day", caps.per_day), ("month", caps.per_month))
    return {kind: nano(cap) for kind, cap in told if cap is not None}
