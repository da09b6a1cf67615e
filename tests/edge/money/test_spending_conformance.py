"""One suite for every driver of spending: what a cap promises, whatever fails.

Of the drivers for many machines each case runs plain, and again with a fault at each request that
it makes: its answer lost, the connection cut, the servers stopped for longer than an answer is
waited for.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clock import Clock
from tests.edge.money.spending_platform import DAY, NOON, SMALL, Platform, reserve
from tests.regions.drivers.faults import FAULTS, Fault, FaultPlan
from tests.regions.drivers.nats_server import NatsCluster

from skerry.errors import QuotaExceeded, Unavailable
from skerry_edge.money.caps import Budget, Caps
from skerry_edge.money.spending import NANO, Hold, Spending
from skerry_regions.drivers.jetstream.specs import key_of

Case = Callable[[Platform, Callable[[], str]], Coroutine[Any, Any, None]]
"""A case, and what gives it ids of tokens that no other run has."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path_factory.mktemp("nats"), size=1)
    yield cluster
    cluster.stop()


_numbers = itertools.count()


def run(case: Case, path: Path, cluster: NatsCluster | None, plan: FaultPlan | None = None) -> None:
    number = next(_numbers)
    tokens = itertools.count()

    async def use() -> None:
        platform = Platform(Clock(NOON), path, cluster, plan)
        try:
            await case(platform, lambda: f"token-{number}-{next(tokens)}")
        finally:
            for edge in list(platform.edges):
                await platform.leave(edge)

    asyncio.run(use())


async def eventually(spending: Spending, token: str, expected: tuple[float, float]) -> None:
    """What is settled is counted in a moment."""
    async with asyncio.timeout(60):
        while True:
            try:
                if await spending.spent(token) == pytest.approx(expected, abs=1e-12):
                    return
            except Unavailable:
                pass
            await asyncio.sleep(0.02)


# --- the cases ------------------------------------------------------------------------------------


async def a_reservation_counts_until_it_is_settled(
    platform: Platform, new_token: Callable[[], str]
) -> None:
    spending, caps = await platform.join(), Caps(per_day=1.0)
    token, another = new_token(), new_token()
    if platform.plan:
        platform.plan.is_armed = True
    hold = await reserve(spending, (Budget(token, caps),), 0.75)
    with pytest.raises(QuotaExceeded) as refused:
        await reserve(spending, (Budget(token, caps),), 0.5)
    assert refused.value.message == (
        "This API token may spend US$ 1 per day: 0.75 is spent, and this request may cost up to "
        "0.5."
    )
    assert refused.value.retry_after == DAY / 2
    await reserve(spending, (Budget(another, caps),), 0.5)
    spending.settle(hold, 0.5)
    await reserve(spending, (Budget(token, caps),), 0.5)
    await eventually(spending, token, (1.0, 1.0))


async def a_cap_holds_over_all_edges(platform: Platform, new_token: Callable[[], str]) -> None:
    """Σ ceilings <= cap in every revision, Σ spent <= cap, and all of it can be spent."""
    one, other = await platform.join(), await platform.join()
    token = new_token()
    budget = (Budget(token, Caps(per_day=100 * SMALL, per_month=1.0)),)
    paid = 0.0
    if platform.plan:
        platform.plan.is_armed = True

    async def client(spending: Spending, seed: int) -> None:
        nonlocal paid
        rng = random.Random(seed)
        while True:
            try:
                hold = await reserve(spending, budget, 4 * SMALL)
            except QuotaExceeded:
                return
            cost = SMALL * rng.randint(1, 4)
            paid += cost
            await asyncio.sleep(0.002 * rng.random())
            spending.settle(hold, cost)

    async with platform.watched():
        await asyncio.gather(*(client(each, seed) for seed in range(3) for each in (one, other)))
    revisions = [record for key, record in platform.records if key == key_of(token)]
    assert bool(revisions) == platform.is_shared
    assert all(each.used("2026-11-21") <= 100 * SMALL * NANO + 1e-6 for each in revisions)
    assert paid <= 100 * SMALL + 1e-12
    assert paid >= 90 * SMALL  # the last requests were larger than what was left
    await platform.leave(other)
    await eventually(one, token, (paid, paid))


async def what_an_edge_that_died_had_reserved_stays_spent(
    platform: Platform, new_token: Callable[[], str]
) -> None:
    token = new_token()
    budget = (Budget(token, Caps(per_day=1.0)),)
    dying, living = await platform.join(), await platform.join()
    if platform.plan:
        platform.plan.is_armed = True
    await reserve(dying, budget, 0.4)
    await platform.die(dying)
    await reserve(living, budget, 0.4)
    successor = await platform.join()
    with pytest.raises(QuotaExceeded):
        await reserve(successor, budget, 0.4)
    hold = await reserve(successor, budget, 0.2)
    successor.settle(hold, 0.1)
    await eventually(living, token, (0.9, 0.9))


async def all_budgets_or_none(platform: Platform, new_token: Callable[[], str]) -> None:
    spending = await platform.join()
    ids = [new_token() for _ in range(4)]
    parent = Budget(ids[0], Caps(per_day=5.0), "ancestor")
    account = Budget(ids[1], Caps(per_month=12.0), "account")
    first, second = (Budget(name, Caps(per_day=5.0)) for name in ids[2:])
    if platform.plan:
        platform.plan.is_armed = True
    await reserve(spending, (first, parent, account), 4.0)
    with pytest.raises(QuotaExceeded, match="The API token that this one was made with may"):
        await reserve(spending, (second, parent, account), 4.0)
    await eventually(spending, second.id, (0.0, 0.0))
    hold = await reserve(spending, (second, parent, account), 1.0)
    spending.settle(hold, 0.5)
    await reserve(spending, (account,), 7.5)
    with pytest.raises(QuotaExceeded, match=r"This account may spend US\$ 12 per month"):
        await reserve(spending, (account,), 0.25)
    for each, expected in ((first, 4.0), (second, 0.5), (parent, 4.5), (account, 12.0)):
        await eventually(spending, each.id, (expected, expected))


async def a_new_day_and_a_changed_cap(platform: Platform, new_token: Callable[[], str]) -> None:
    spending, other = await platform.join(), await platform.join()
    token = new_token()
    if platform.plan:
        platform.plan.is_armed = True
    await reserve(spending, (Budget(token, Caps(per_day=1.0, per_month=1.5)),), 1.0)
    platform.clock.now += DAY
    await eventually(spending, token, (0.0, 1.0))
    budget = (Budget(token, Caps(per_day=1.0, per_month=1.5)),)
    with pytest.raises(QuotaExceeded, match=r"US\$ 1.5 per month: 1 is spent"):
        await reserve(other, budget, 1.0)
    raised = (Budget(token, Caps(per_day=1.0, per_month=3.0)),)
    hold = await reserve(spending, raised, 1.0)
    spending.settle(hold, 0.25)
    lowered = (Budget(token, Caps(per_day=0.5, per_month=3.0)),)
    with pytest.raises(QuotaExceeded, match=r"US\$ 0.5 per day"):
        await reserve(spending, lowered, 0.5)
    await reserve(spending, lowered, 0.25)
    await eventually(other, token, (0.5, 1.5))


async def who_is_cancelled_gets_it_back(platform: Platform, new_token: Callable[[], str]) -> None:
    spending, token = await platform.join(), new_token()
    budget = (Budget(token, Caps(per_day=1.0)),)
    if platform.plan:
        platform.plan.is_armed = True
    for delay in (0.0, 0.001, 0.003):
        reserving = asyncio.create_task(spending.reserve(budget, 0.5))
        await asyncio.sleep(delay)
        reserving.cancel()
        for done in await asyncio.gather(reserving, return_exceptions=True):
            if isinstance(done, Hold):
                spending.settle(done, 0.0)
    await eventually(spending, token, (0.0, 0.0))
    await reserve(spending, budget, 1.0)


async def what_leaves_gives_all_back(platform: Platform, new_token: Callable[[], str]) -> None:
    """Also of a large cap, of which edges hold leases."""
    token = new_token()
    budget = (Budget(token, Caps(per_day=1000 * SMALL)),)
    edges = [await platform.join() for _ in range(2)]
    if platform.plan:
        platform.plan.is_armed = True
    for edge in edges:
        edge.settle(await reserve(edge, budget, 2 * SMALL), SMALL)
    for edge in edges:
        await platform.leave(edge)
    last = await platform.join()
    await eventually(last, token, (2 * SMALL, 2 * SMALL))
    await reserve(last, budget, 998 * SMALL)


CASES: tuple[Case, ...] = (
    a_reservation_counts_until_it_is_settled,
    a_cap_holds_over_all_edges,
    what_an_edge_that_died_had_reserved_stays_spent,
    all_budgets_or_none,
    a_new_day_and_a_changed_cap,
    who_is_cancelled_gets_it_back,
    what_leaves_gives_all_back,
)


@pytest.mark.parametrize("case", CASES)
def test_sqlite(case: Case, tmp_path: Path) -> None:
    run(case, tmp_path, None)


@pytest.mark.parametrize("case", CASES)
def test_nats(case: Case, tmp_path: Path, server: NatsCluster) -> None:
    run(case, tmp_path, server)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("case", CASES)
def test_nats_with_a_fault_at_each_request(
    case: Case, fault: Fault, tmp_path: Path, server: NatsCluster
) -> None:
    at, was_hit = 0, True
    while was_hit:
        plan = FaultPlan(fault, at, server)
        run(case, tmp_path, server, plan)
        at, was_hit = at + 1, plan.was_hit
    assert at > 3
