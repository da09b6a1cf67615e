"""Tenants take turns at a thread: by what their work took, not by how much they pile up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from skerry.errors import Overloaded, RateLimited
from skerry_regions.process.confined import Exhausted
from skerry_regions.process.fair_queue import FairQueue


class Clock:
    """Seconds that pass only when work says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def takes(self, seconds: float, note: Callable[[], None] = lambda: None) -> Callable[[], None]:
        """Work of so many seconds."""

        def work() -> None:
            note()
            self.seconds += seconds

        return work


def run(main: Callable[[FairQueue, Clock], Awaitable[None]], **bounds: int) -> None:
    async def whole() -> None:
        clock = Clock()
        queue = FairQueue("test", clock=clock, **bounds)
        try:
            await main(queue, clock)
        finally:
            queue.close()

    asyncio.run(whole())


def void(_: object) -> None:
    """Drop a result."""


def exhausted() -> None:
    raise Exhausted


def test_results_and_errors_come_back() -> None:
    async def main(queue: FairQueue, clock: Clock) -> None:
        assert await queue.run("a", lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await queue.run("a", lambda: 1 // 0)
        assert queue._tenants == {}

    run(main)


def test_one_request_waits_for_one_of_another_tenants_pile_and_not_for_all() -> None:
    async def main(queue: FairQueue, clock: Clock) -> None:
        gate, order = threading.Event(), list[str]()
        first = clock.takes(1, lambda: order.append("loud" if gate.wait() else ""))
        tasks = [asyncio.create_task(queue.run("loud", first))]
        for _ in range(40):
            tasks.append(
                asyncio.create_task(queue.run("loud", clock.takes(1, lambda: order.append("loud"))))
            )
        await asyncio.sleep(0)
        quiet = clock.takes(0.01, lambda: order.append("quiet"))
        tasks += [asyncio.create_task(queue.run("quiet", quiet)) for _ in range(3)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*tasks)
        assert order[:4] == ["loud", "quiet", "quiet", "quiet"]
        assert len(order) == 44

    run(main)


def test_turns_are_by_seconds() -> None:
    async def main(queue: FairQueue, clock: Clock) -> None:
        gate, order = threading.Event(), list[str]()
        hold = clock.takes(0, lambda: void(gate.wait()))
        tasks = [asyncio.create_task(queue.run("other", hold))]
        await asyncio.sleep(0)
        for name, seconds, number in (("long", 4.0, 10), ("short", 1.0, 40)):
            work = clock.takes(seconds, lambda name=name: order.append(name))
            tasks += [asyncio.create_task(queue.run(name, work)) for _ in range(number)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*tasks)
        assert order[:25].count("long") == 5
        assert order[:25].count("short") == 20

    run(main)


def test_a_tenants_own_bound_is_its_own() -> None:
    async def main(queue: FairQueue, clock: Clock) -> None:
        gate = threading.Event()
        tasks = [asyncio.create_task(queue.run("loud", gate.wait)) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as refused:
            await queue.run("loud", gate.wait)
        assert refused.value.retry_after
        tasks.append(asyncio.create_task(queue.run("quiet", gate.wait)))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await queue.run("third", gate.wait)
        gate.set()
        await asyncio.gather(*tasks)

    run(main, max_tenant_waiting=3, max_waiting=4)


def test_whose_work_was_ended_pauses_twice_as_long_each_time() -> None:
    async def main(queue: FairQueue, clock: Clock) -> None:
        for pause in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
            with pytest.raises(Exhausted):
                await queue.run("bad", exhausted)
            with pytest.raises(RateLimited) as refused:
                await queue.run("bad", lambda: None)
            assert refused.value.retry_after == pytest.approx(pause)
            await queue.run("good", lambda: None)
            clock.seconds += pause
        clock.seconds += 61
        await queue.run("bad", lambda: None)
        assert queue._tenants == {}  # it is as good as new

    run(main)


def test_who_is_gone_takes_no_turn() -> None:
    async def main(queue: FairQueue, clock: Clock) -> None:
        gate, order = threading.Event(), list[str]()
        running = asyncio.create_task(queue.run("a", gate.wait))
        gone = asyncio.create_task(queue.run("b", lambda: order.append("b")))
        await asyncio.sleep(0)
        gone.cancel()
        gate.set()
        await running
        await queue.run("c", lambda: order.append("c"))
        assert order == ["c"]

    run(main)
