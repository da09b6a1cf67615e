"""Leases of money on a real NATS server: what they need of it, and what they do without it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client
from tests import cycles
from tests.regions.drivers.faults import FaultPlan
from tests.regions.drivers.nats_server import NatsCluster

from skerry.errors import QuotaExceeded, Unavailable
from skerry_edge.money import nats_spending, purse
from skerry_edge.money.caps import Budget, Caps
from skerry_edge.money.ceilings import RESTORE_SECONDS
from skerry_edge.money.nats_spending import NatsSpending
from skerry_edge.money.purse import record_of
from skerry_edge.money.spending import NANO, periods_at
from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.specs import key_of
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.jetstream.tables import MONEY
from skerry_regions.zones import GLOBAL

COST = 0.000_01  # US$
LARGE = Caps(per_day=1000 * COST)


class Clock:
    def __init__(self) -> None:
        self.passed = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.passed


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path, size=1)
    yield cluster
    cluster.stop()


@asynccontextmanager
async def edge(
    cluster: NatsCluster, clock: Clock | None = None, plan: FaultPlan | None = None
) -> AsyncGenerator[NatsSpending]:
    jetstream = JetStream(cluster.state, make_client=plan.client if plan else Client)
    await jetstream.open((MONEY, GLOBAL))
    spending = NatsSpending(
        KeyedStream(jetstream, MONEY, GLOBAL), edges=lambda: 2, clock=clock or time.monotonic
    )
    try:
        yield spending
    finally:  # else a test that fails has the next one fail, too, for its connections
        await spending.close()
        await jetstream.close()


async def held(spending: NatsSpending, token: str) -> float:
    """US$ that the record has as spent, or set aside, this month."""
    record, _ = record_of(await spending._stream.last(key_of(token)))
    return record.used(periods_at(time.time())[1].name) / NANO


async def until_held(spending: NatsSpending, token: str, amount: float) -> None:
    async with asyncio.timeout(60):
        while await held(spending, token) != pytest.approx(amount):  # noqa: ASYNC110  (a server's)
            await asyncio.sleep(0.02)


def test_a_reservation_from_a_lease_sends_nothing(cluster: NatsCluster) -> None:
    async def use() -> None:
        plan = FaultPlan("answer lost", 1 << 30, cluster)
        async with edge(cluster, plan=plan) as spending:
            budget = (Budget("a", LARGE),)
            await spending.reserve(budget, COST)
            await asyncio.sleep(0.1)
            task = asyncio.current_task()
            assert task is not None
            reserving = spending.reserve(budget, COST)
            with pytest.raises(StopIteration):  # it awaits nothing
                reserving.send(None)

    asyncio.run(use())


def test_requests_go_on_from_a_lease_while_the_servers_are_away(cluster: NatsCluster) -> None:
    async def use() -> None:
        clock = Clock()
        async with edge(cluster, clock) as spending:
            budget = (Budget("a", LARGE),)
            hold = await spending.reserve(budget, COST)
            cluster.kill("n1")
            for _ in range(3):
                spending.settle(hold, COST / 2)
                hold = await spending.reserve(budget, COST)
            with pytest.raises(Unavailable, match="What has been spent cannot be read now"):
                await spending.reserve((Budget("another", LARGE),), COST)
            clock.passed = nats_spending.OLDEST_SECONDS + 1
            with pytest.raises(Unavailable, match="last read too long ago"):
                await spending.reserve(budget, COST)
            clock.passed = 0.0
            cluster.start("n1")
            spending.settle(hold, COST / 2)
            async with asyncio.timeout(60):
                while True:
                    try:
                        await spending.reserve((Budget("another", LARGE),), COST)
                        break
                    except Unavailable:
                        await asyncio.sleep(0.05)
        async with edge(cluster) as spending:
            assert await spending.spent("a") == (pytest.approx(2 * COST), pytest.approx(2 * COST))

    asyncio.run(use())


def test_a_lease_that_is_not_used_goes_back_and_is_forgotten(cluster: NatsCluster) -> None:
    async def use() -> None:
        clock = Clock()
        async with edge(cluster, clock) as spending:
            spending.settle(await spending.reserve((Budget("a", LARGE),), COST), COST / 2)
            assert await held(spending, "a") > COST / 2
            spending.tend()
            assert await held(spending, "a") > COST / 2
            clock.passed = nats_spending.IDLE_SECONDS + 1
            spending.tend()
            await until_held(spending, "a", COST / 2)
            async with asyncio.timeout(60):
                while spending._purses:
                    spending.tend()
                    await asyncio.sleep(0.02)
            await spending.reserve((Budget("a", LARGE),), COST)  # goes on where it ended
            assert (await spending.spent("a"))[0] == pytest.approx(1.5 * COST)

    asyncio.run(use())


def test_an_idle_lease_is_recalled_for_who_lacks_it(cluster: NatsCluster) -> None:
    async def use() -> None:
        async with edge(cluster) as idle, edge(cluster) as busy:
            budget = (Budget("a", Caps(per_day=30 * COST)),)
            await idle.reserve(budget, COST)
            spent = 1
            async with asyncio.timeout(60):
                while spent < 28:  # with what the other got that it does not need
                    with contextlib.suppress(QuotaExceeded):
                        await busy.reserve(budget, COST)
                        spent += 1
            for _ in range(10):
                with contextlib.suppress(QuotaExceeded):
                    await busy.reserve(budget, COST)
                    spent += 1
            assert spent <= 30

    asyncio.run(use())


def test_others_have_time_to_give_back_once_a_store_that_lost_all_is_restored(
    cluster: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then who lacks it cannot say so."""
    monkeypatch.setattr(purse, "RECALL_SECONDS", 4.0)
    monkeypatch.setattr(purse, "READ_SECONDS", 60.0)

    async def use() -> None:
        clock = Clock()
        async with edge(cluster) as idle, edge(cluster, clock) as busy:
            budget = (Budget("a", Caps(per_day=30 * COST)),)
            await busy.reserve(budget, COST)
            for hold in [await idle.reserve(budget, COST) for _ in range(20)]:
                idle.settle(hold, 0.0)
            busy._lost()
            lacking = asyncio.create_task(busy.reserve(budget, 15 * COST))
            await asyncio.sleep(0.1)
            clock.passed = RESTORE_SECONDS
            busy._purses[key_of("a")]._changed.set()  # as by a write of a third edge
            await lacking

    asyncio.run(use())


def test_a_cap_that_one_edge_lowers_holds_at_another_within_a_second(cluster: NatsCluster) -> None:
    """Though that one has a lease, and a configuration of before."""

    async def use() -> None:
        async with edge(cluster) as one, edge(cluster) as other:
            budget = (Budget("a", LARGE),)
            for spending in (one, other):
                for _ in range(10):
                    await spending.reserve(budget, COST)
            await one.reserve((Budget("a", Caps(per_day=25 * COST)),), COST)
            await asyncio.sleep(1.0)
            num_spent = 21
            with contextlib.suppress(QuotaExceeded):
                while num_spent < 100:
                    await other.reserve(budget, COST)
                    num_spent += 1
            assert num_spent <= 25, "what it had a lease of before is not spent"

    asyncio.run(use())


def test_a_first_request_of_a_payer_writes_once(cluster: NatsCluster) -> None:
    """Also where the follower has the record before the answer to its write comes."""

    async def use() -> None:
        async with edge(cluster) as spending:
            for number in range(50):
                await spending.reserve((Budget(f"t{number}", LARGE),), COST)
            await asyncio.sleep(0.2)
            assert (await spending._stream.state()).last_sequence == 50

    asyncio.run(use())


def test_a_store_that_lost_all_is_told_again_at_once(cluster: NatsCluster) -> None:
    async def use() -> None:
        async with edge(cluster) as spending:
            await spending.reserve((Budget("a", LARGE),), COST)
            await asyncio.sleep(0.1)
            before = await held(spending, "a")
            cluster.kill("n1")
            cluster.forget("n1")
            cluster.start("n1")
            told = 0.0
            async with asyncio.timeout(60):
                while told < before - 1e-9:
                    with contextlib.suppress(Unavailable):
                        told = await held(spending, "a")
                    await asyncio.sleep(0.05)

    asyncio.run(use())


def test_what_is_left_at_the_servers_is_bounded(cluster: NatsCluster) -> None:
    """One message of each payer, and no consumer of an edge that is gone."""

    async def use() -> None:
        async with edge(cluster) as first:
            for _ in range(3):
                async with edge(cluster) as spending:
                    for number in range(5):
                        hold = await spending.reserve((Budget(f"t{number}", LARGE),), COST)
                        spending.settle(hold, 0.0)
            state = await first._stream.state()
            assert state.num_messages == 5
            assert 1 <= state.num_consumers <= 4  # servers forget them after half a minute
            stored = await first._stream.last("t0")
            assert stored is not None
            assert len(stored.data) < 1000

    asyncio.run(use())


def test_who_is_refused_all_the_time_gets_what_others_give_back(cluster: NatsCluster) -> None:
    async def use() -> None:
        async with edge(cluster) as one, edge(cluster) as other:
            budget = (Budget("a", Caps(per_day=10 * COST)),)
            hold = await one.reserve(budget, 10 * COST)
            asyncio.get_running_loop().call_later(0.6, one.settle, hold, 0.0)
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(QuotaExceeded):
                        await other.reserve(budget, COST)
                        break
                    await asyncio.sleep(0.01)

    asyncio.run(use())


def test_a_request_that_is_refused_leaves_no_cycle(cluster: NatsCluster) -> None:
    async def use() -> Counter[str]:
        async with edge(cluster) as spending:
            budget = (Budget("a", Caps(per_day=10 * COST)),)
            await spending.reserve(budget, 10 * COST)
            with cycles.counted() as found:
                for _ in range(5):
                    with pytest.raises(QuotaExceeded):
                        await spending.reserve(budget, COST)
        return found

    assert asyncio.run(use()) == {}
