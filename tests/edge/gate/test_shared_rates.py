"""One suite for limits at edges of one home, and at edges that share them on real NATS servers.

With NATS each case runs plain, and again with a fault at each request of the first edge.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from tests.edge.gate.demands import ME, MODEL, OTHER, demand
from tests.regions.drivers.faults import FAULTS_MOSTLY_SLOW, Fault, FaultPlan
from tests.regions.drivers.nats_server import NatsCluster

from skerry.errors import Overloaded, RateLimited
from skerry_edge.gate.admission import Admission, Place
from skerry_edge.gate.quotas import (
    AccountAllowance,
    Allowance,
    ModelAllowance,
    Quotas,
)
from skerry_edge.shared.nats_rates import NatsRates
from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.specs import MIB
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.jetstream.tables import RATES

THIRD = "c" * 32
SMALL = replace(RATES, max_bytes=MIB)
Join = Callable[[Quotas], Coroutine[Any, Any, Admission]]
"""Gives another edge of the platform."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path_factory.mktemp("nats"), size=1)
    yield cluster
    cluster.stop()


@asynccontextmanager
async def platform(
    cluster: NatsCluster | None, plan: FaultPlan | None = None
) -> AsyncGenerator[Join]:
    """Edges that share limits; `plan` hits the first."""
    zone, is_first = secrets.token_hex(4), True
    async with AsyncExitStack() as stack:

        async def join(quotas: Quotas) -> Admission:
            nonlocal is_first
            if cluster is None:
                return Admission(quotas=quotas)
            make = plan.client if plan is not None and is_first else Client
            is_first = False
            jetstream = JetStream(cluster.state, make_client=make)
            await jetstream.open((SMALL, zone))
            stack.push_async_callback(jetstream.close)
            rates = NatsRates(KeyedStream(jetstream, SMALL, zone))
            stack.push_async_callback(rates.close)
            return Admission(quotas=quotas, rates=rates)

        yield join


async def enter(edge: Admission, tenant: str = ME, tokens: int = 100) -> Place:
    """As the rim does."""
    for model in ("", MODEL):
        await edge.prepare(tenant, model)
        edge.arrive(tenant, model)
    return await edge.enter(demand(tenant, prompt=tokens))


async def entered(edge: Admission, tenant: str = ME, *, tokens: int = 100, most: int = 100) -> int:
    """How many come in until one is refused, each of which stays."""
    for number in range(most):
        try:
            await enter(edge, tenant, tokens)
        except (RateLimited, Overloaded):
            return number
    return most


# --- the cases ------------------------------------------------------------------------------------


async def a_burst_is_as_large_as_a_minute(join: Join) -> None:
    edge = await join(Quotas(every_tenant=AccountAllowance(requests_per_minute=6)))
    assert await entered(edge) == 6
    assert await entered(edge, OTHER) == 6, "others have limits of their own"


async def tokens_that_were_not_used_come_back(join: Join) -> None:
    edge = await join(Quotas(every_tenant=AccountAllowance(tokens_per_minute=10)))
    place = await enter(edge, tokens=10)
    assert await entered(edge, tokens=10) == 0
    place.leave(prompt_tokens=2)
    assert await entered(edge, tokens=8) == 1
    large = await enter(edge, OTHER, tokens=30)  # more than the whole, of a full bucket
    assert await entered(edge, OTHER, tokens=1) == 0
    large.leave(prompt_tokens=30)


async def places_come_back(join: Join) -> None:
    edge = await join(Quotas(every_tenant=AccountAllowance(concurrency=3)))
    places = [await enter(edge) for _ in range(3)]
    assert await entered(edge) == 0
    places.pop().leave()
    assert await entered(edge) == 1


async def a_limit_of_a_model_is_that_of_all_tenants(join: Join) -> None:
    busy = ModelAllowance(model=MODEL, all_tenants=Allowance(concurrency=2))
    edge = await join(Quotas(models={MODEL: busy}))
    place = await enter(edge)
    await enter(edge, OTHER)
    assert await entered(edge) == 0
    place.leave()
    assert await entered(edge, OTHER) == 1


async def a_limit_that_is_changed_holds_at_once(join: Join) -> None:
    edge = await join(Quotas(every_tenant=AccountAllowance(requests_per_minute=60, concurrency=9)))
    await enter(edge)
    edge.hold_to(Quotas(every_tenant=AccountAllowance(requests_per_minute=4, concurrency=3)))
    assert await entered(edge) == 2  # three at once
    edge.hold_to(Quotas())
    assert await entered(edge) == 100
    edge.hold_to(Quotas(every_tenant=AccountAllowance(requests_per_minute=4)))
    assert await entered(edge) <= 4


CASES = [
    a_burst_is_as_large_as_a_minute,
    tokens_that_were_not_used_come_back,
    places_come_back,
    a_limit_of_a_model_is_that_of_all_tenants,
    a_limit_that_is_changed_holds_at_once,
]
Case = Callable[[Join], Coroutine[Any, Any, None]]


@pytest.mark.parametrize("case", CASES)
def test_in_one_home(case: Case) -> None:
    async def run() -> None:
        async with platform(None) as join:
            await case(join)

    asyncio.run(run())


@pytest.mark.parametrize("case", CASES)
def test_on_servers(case: Case, servers: NatsCluster) -> None:
    async def run() -> None:
        async with platform(servers) as join:
            await case(join)

    asyncio.run(run())


@pytest.mark.parametrize("fault", FAULTS_MOSTLY_SLOW)
@pytest.mark.parametrize("case", CASES)
def test_on_servers_whatever_request_fails(
    case: Case, fault: Fault, servers: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry_edge.shared.nats_rates.WAIT_SECONDS", 10.0)

    async def run(at: int) -> bool:
        plan = FaultPlan(fault, at, servers)
        async with platform(servers, plan) as join:

            async def armed(quotas: Quotas) -> Admission:
                edge = await join(quotas)
                plan.is_armed = True
                return edge

            await case(armed)
        return plan.was_hit

    at = 0
    while at < MOST and asyncio.run(run(at)):
        at += 1
    assert at > 2


MOST = 4  # an edge that gives signs of life has requests for ever


def test_an_edge_that_comes_has_its_part_with_its_first_request(servers: NatsCluster) -> None:
    """Together they let in what one would; and who leaves takes nothing along."""
    quotas = Quotas(
        every_tenant=AccountAllowance(requests_per_minute=60, tokens_per_minute=6000, concurrency=8)
    )

    async def run() -> None:
        async with platform(servers) as join:
            one, other = await join(quotas), await join(quotas)
            first = await enter(one)
            second = await enter(other)
            places = await entered(one) + await entered(other)
            assert places + 2 <= 8
            async with asyncio.timeout(60):
                while places + 2 < 8:  # what one lacks another gives back in a moment
                    await asyncio.sleep(0.1)
                    places += await entered(one, most=1) + await entered(other, most=1)
            first.leave()
            second.leave()

    asyncio.run(run())


def test_servers_that_are_away_leave_each_edge_an_equal_part(tmp_path: Path) -> None:
    cluster = NatsCluster(tmp_path / "nats", size=1)
    quotas = Quotas(every_tenant=AccountAllowance(requests_per_minute=12))

    async def run() -> None:
        jetstream = JetStream(cluster.state)
        await jetstream.open((SMALL, "eu"))
        rates = NatsRates(KeyedStream(jetstream, SMALL, "eu"))
        edge = Admission(quotas=quotas, rates=rates, edges=lambda: 3)
        await enter(edge)
        await enter(edge, THIRD)
        for keeper in rates._keepers.values():
            if THIRD in keeper.key:
                await keeper.give_all()
        cluster.kill("n1")
        async with asyncio.timeout(60):
            while not jetstream.problem:  # noqa: ASYNC110  (the connection's)
                await asyncio.sleep(0.01)
        assert await entered(edge) == 11, "its part is all of it, and stays"
        assert await entered(edge, OTHER) == 4
        assert await entered(edge, THIRD) == 4, "it has given its part back"
        await rates.close()
        await jetstream.close()

    asyncio.run(run())
    cluster.stop()
