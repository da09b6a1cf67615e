"""The fast path as a whole: its workers, and a table that follows what the responder serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import numpy as np

from skerry_dns.fast.blocks import TooManyBlocks
from skerry_dns.fast.compiling import Contents, Order, make_table, orders_of, read_contents
from skerry_dns.fast.limiting import make_limits
from skerry_dns.fast.responding import COUNTERS, RCODES
from skerry_dns.fast.table import empty_table
from skerry_dns.fast.workers import Answer, Workers
from skerry_dns.server.responder import Responder
from skerry_regions.geo.places import State
from skerry_regions.process.cancellation import cancel_tasks
from skerry_regions.process.startup import on_thread

LOOK_SECONDS = 0.2  # between looks whether something has changed
ANEW_SECONDS = 6 * 3600.0  # signatures are renewed long before they end: so is what has them
EVENTS = ("received", "sent", "ignored", "dropped", "slow", "slow_lost", "unsent")

Address = tuple[int, Any]  # family and a socket's name
T = TypeVar("T")

logger = logging.getLogger(__name__)


class FastPath:
    """Answers over UDP for a responder, and calls it for what it cannot answer by itself."""

    def __init__(self, responder: Responder, workers: int, prepare: Callable[[], None]) -> None:
        """`workers` of each address. `prepare` has the compiled code ready when it returns; it may
        take long, and runs on a thread of its own."""
        self._responder = responder
        self._count = workers
        self._prepare = prepare
        self._workers: list[Workers] = []
        self._running: asyncio.Task[None] | None = None
        self._generation = 0
        self._limits = responder.limits
        self._state: State | None = None  # of regions, and the orders that they have …
        self._orders: tuple[Order, ...] = ()  # … in the workers' table
        self.current = asyncio.Event()  # the table is what the responder serves

    def open(
        self, addresses: Sequence[Address], answer: Answer, take_over: Callable[[], None]
    ) -> None:
        """Take UDP at addresses as soon as everything is ready, and then call `take_over`.

        Whoever has them until then has bound them with SO_REUSEPORT. `answer` is called for what
        the fast path leaves.
        """
        self._running = asyncio.create_task(self._run(addresses, answer, take_over))

    async def close(self) -> None:
        """Stop answering."""
        await cancel_tasks(self._running)
        await asyncio.gather(*(each.close() for each in self._workers))
        self._workers.clear()

    def events(self) -> dict[str, int]:
        """Return counts since the start, by name."""
        return dict(zip(EVENTS, self._sums(), strict=False))

    def answers(self) -> dict[int, int]:
        """Return counts since the start, by code."""
        return {code: count for code, count in enumerate(self._sums()[RCODES:]) if count}

    def _sums(self) -> list[int]:
        scratches = [scratch for each in self._workers for scratch in each.scratches]
        return [sum(int(each.counters[row]) for each in scratches) for row in range(COUNTERS)]

    async def _run(
        self, addresses: Sequence[Address], answer: Answer, take_over: Callable[[], None]
    ) -> None:
        try:
            await on_thread(self._prepare)
            await self._start(addresses, answer)
            take_over()
            await self._follow()
        except TooManyBlocks:
            logger.warning("too many blocks of addresses: answers come from the slow path")
        except Exception:  # the slow path goes on without us
            logger.exception("the fast path has ended")
        self._leave_everything()

    async def _start(self, addresses: Sequence[Address], answer: Answer) -> None:
        self._limits = self._responder.limits
        limits = make_limits(self._limits)
        secret = self._responder.cookies.secret
        workers: list[Workers] = []
        try:
            for family, name in addresses:
                workers.append(
                    Workers(name, family, self._count, secret=secret, limits=limits, answer=answer)
                )
            for each in workers:
                each.start()
        except Exception:  # what came to sockets that are not read would be lost
            await asyncio.gather(*(each.close() for each in workers))
            raise
        self._workers = workers

    def _leave_everything(self) -> None:
        """Leave all to the slow path: the workers' table is not kept current any more."""
        self.current.clear()
        self._generation += 1
        table = empty_table()._replace(generation=np.array([self._generation]))
        for each in self._workers:
            each.take(table)

    async def _follow(self) -> None:
        """Keep the table what the responder would answer, until cancelled. Raises
        `TooManyBlocks`."""
        contents = await _apart(read_contents(self._responder))
        while True:
            self._orders = ()
            self._take_limits()
            await self._follow_until_changed(contents)
            contents = await self._read_beside(contents)

    def _take_limits(self) -> None:
        """Take the responder's limits, where it has been given others."""
        if self._responder.limits is not self._limits:
            self._limits = self._responder.limits
            limits = make_limits(self._limits)
            for each in self._workers:
                each.limit(limits)

    async def _follow_until_changed(self, contents: Contents) -> None:
        """Wait until something else is served, or signatures are old."""
        loop = asyncio.get_running_loop()
        anew_at = loop.time() + ANEW_SECONDS
        while self._is_served(contents) and loop.time() < anew_at:
            await self._follow_state(contents)
            await asyncio.sleep(LOOK_SECONDS)

    async def _read_beside(self, before: Contents) -> Contents:
        """Return what is served now. That takes seconds for a large zone: answers are those of
        `before` meanwhile, by the state of regions."""
        self.current.clear()
        reading = asyncio.create_task(_apart(read_contents(self._responder, before)))
        try:
            while not reading.done():
                await self._follow_state(before)
                await asyncio.wait((reading,), timeout=LOOK_SECONDS)
            return reading.result()
        finally:
            reading.cancel()

    def _is_served(self, contents: Contents) -> bool:
        return contents.source.version == self._responder.version

    async def _follow_state(self, contents: Contents) -> None:
        """Make another table, where the state of regions has led to other orders."""
        state = self._responder.places.state
        if state is self._state and self._orders:
            return
        orders = await _apart(orders_of(contents, state))
        if self._responder.places.state is not state:
            return  # and again, with what is so now
        if orders != self._orders:
            self._generation += 1
            making = make_table(
                contents, orders, self._generation, lambda: self._responder.places.state is state
            )
            table = await _apart(making)
            if table is None:
                return  # and again, with what is so now
            for each in self._workers:
                each.take(table)
        self._state, self._orders = state, orders
        if self._is_served(contents):
            self.current.set()


async def _apart(work: Generator[None, None, T]) -> T:
    """Do work in pieces, with others' turns between them."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await asyncio.sleep(0)
