"""Stored responses and idempotency keys: one suite over both drivers, and a fault at each request
that goes to NATS servers."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.edge.ledger.shared_stores import Drivers, Open, hit_everywhere
from tests.edge.ledger.stored_responses import (
    KEY_DRIVERS,
    LARGE,
    RESPONSE_DRIVERS,
    SOME_FAULTS,
    TENANT_BYTES,
    TTL,
    A,
    B,
    opened_keys,
    patient,
    stored,
)
from tests.regions.drivers.faults import Fault, FaultPlan
from tests.regions.drivers.nats_server import NatsCluster

from skerry.errors import IdempotencyMismatch, Unavailable
from skerry_edge.ledger.idempotency import Claimed, IdempotencyKey, RequestKeys
from skerry_edge.ledger.responses_store import Responses, ResponseStore
from skerry_edge.shared import nats_keys, nats_responses
from skerry_edge.shared.nats_responses import NatsResponses
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.jetstream.tables import RESPONSES


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait as long as a busy machine takes to recover from a fault."""
    monkeypatch.setattr(nats_responses, "PUT_SECONDS", 20.0)
    monkeypatch.setattr(nats_keys, "CLAIM_SECONDS", 20.0)


@pytest.fixture(params=["sqlite", "nats"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def responses(
    driver: str, cluster: NatsCluster, tmp_path: Path
) -> AbstractAsyncContextManager[Open[Responses]]:
    if driver == "sqlite":
        return RESPONSE_DRIVERS.in_file(tmp_path / "r.db")
    return RESPONSE_DRIVERS.on(cluster)


def test_a_response_is_found_by_its_tenant_at_any_edge(
    responses: AbstractAsyncContextManager[Open[Responses]],
) -> None:
    async def use() -> None:
        async with responses as open:
            one, other = await open(), await open()
            for number in range(50):
                id = f"resp_eu.{number}"
                assert await one.put(A, id, stored(id))
                assert await other.get(A, id) == stored(id)
            assert await other.get(B, "resp_eu.0") is None
            assert not await other.delete(B, "resp_eu.0")
            assert await other.delete(A, "resp_eu.0")
            assert await one.get(A, "resp_eu.0") is None
            assert not await one.delete(A, "resp_eu.0")
            assert await one.get(A, "resp_eu.1") == stored("resp_eu.1")

    asyncio.run(use())


def test_a_large_response_comes_back_whole(
    responses: AbstractAsyncContextManager[Open[Responses]],
) -> None:
    async def use() -> None:
        async with responses as open:
            one, other = await open(), await open()
            assert await one.put(A, "r", LARGE)
            assert await other.get(A, "r") == LARGE
            assert await one.put(A, "r", stored())
            assert await other.get(A, "r") == stored()
            assert not await one.put(A, "huge", stored("x" * TENANT_BYTES))
            assert await other.get(A, "huge") is None

    asyncio.run(use())


def test_a_response_is_there_before_its_time_and_gone_after_it(
    driver: str, cluster: NatsCluster, tmp_path: Path
) -> None:
    drivers = Drivers[Responses](
        spec=RESPONSES,
        nats=NatsResponses,
        sqlite=lambda path: ResponseStore(path, ttl_seconds=TTL),
    )
    is_file = driver == "sqlite"

    async def use() -> None:
        opened = drivers.in_file(tmp_path / "r.db") if is_file else drivers.on(cluster, max_age=TTL)
        async with opened as open:
            store = await open()
            began = time.monotonic()
            await store.put(A, "r", stored())
            found = await store.get(A, "r")
            assert found == stored() or time.monotonic() - began > TTL
            async with asyncio.timeout(30):  # 2 seconds after its time, on a machine that is idle
                while await store.get(A, "r") is not None:  # noqa: ASYNC110  (the store's clock)
                    await asyncio.sleep(0.05)
            assert time.monotonic() - began >= TTL

    asyncio.run(use())


def test_a_tenant_keeps_about_so_much_and_takes_no_others_room(
    responses: AbstractAsyncContextManager[Open[Responses]],
) -> None:
    async def use() -> None:
        async with responses as open:
            store = await open()
            await store.put(B, "mine", stored())
            for number in range(60):
                await store.put(A, str(number), stored("x" * 100_000))
            kept = [number for number in range(60) if await store.get(A, str(number))]
            assert kept == list(range(60 - len(kept), 60)), "the oldest went first"
            assert 20 <= len(kept) <= 23  # 2 MiB, and an eighth
            assert await store.get(B, "mine") == stored()

    asyncio.run(use())


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("fault", SOME_FAULTS)
def test_a_response_is_whole_or_absent_whatever_fails(cluster: NatsCluster, fault: Fault) -> None:
    async def case(open: Open[Responses], plan: FaultPlan) -> None:
        one, other = await open(), await open()
        plan.is_armed = True
        for id, response in (("small", stored()), ("large", LARGE)):
            assert await one.put(A, id, response)
            assert await other.get(A, id) == response
            assert await patient(lambda id=id: one.get(A, id)) == response
        assert await patient(lambda: one.delete(A, "large")) in (True, False)
        assert await other.get(A, "large") is None

    assert hit_everywhere(RESPONSE_DRIVERS, cluster, fault, case) >= 8


def test_a_key_is_its_first_requests_at_any_edge(
    driver: str, cluster: NatsCluster, tmp_path: Path
) -> None:
    async def use() -> None:
        async with opened_keys(driver, cluster, tmp_path) as open:
            edges = [await open() for _ in range(4)]
            key = IdempotencyKey("a key, of any characters * > .", b"digest")
            claims = [
                edge.claim(A, key, f"request-{number}", b"defaults-%d" % number)
                for number, edge in enumerate(edges)
            ]
            first, *others = await asyncio.gather(*claims)
            assert others == [first] * 3
            number = first.first_id.removeprefix("request-")
            assert first.defaults == f"defaults-{number}".encode()
            with pytest.raises(IdempotencyMismatch):
                await edges[0].claim(A, IdempotencyKey(key.key, b"another"), "request-9")
            assert await edges[0].claim(B, key, "request-9") == Claimed("request-9", b"")

    asyncio.run(use())


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("fault", SOME_FAULTS)
def test_a_key_is_claimed_once_whatever_fails(cluster: NatsCluster, fault: Fault) -> None:
    async def case(open: Open[RequestKeys], plan: FaultPlan) -> None:
        one, other = await open(), await open()
        plan.is_armed = True
        mine, theirs = IdempotencyKey("mine", b"1"), IdempotencyKey("theirs", b"2")
        assert await one.claim(A, mine, "one") == Claimed("one", b"")
        assert await other.claim(A, mine, "other") == Claimed("one", b"")
        assert await other.claim(A, theirs, "other") == Claimed("other", b"")
        assert await one.claim(A, theirs, "one") == Claimed("other", b"")

    assert hit_everywhere(KEY_DRIVERS, cluster, fault, case) >= 3


def test_a_tenant_has_so_many_keys(cluster: NatsCluster) -> None:
    async def use() -> None:
        async with KEY_DRIVERS.on(cluster) as open:
            keys = await open()
            for number in range(64):
                await keys.claim(A, IdempotencyKey(str(number), b"1"), f"request-{number}")
            last = await keys.claim(A, IdempotencyKey("63", b"1"), "again")
            assert last.first_id == "request-63"
            first = await keys.claim(A, IdempotencyKey("0", b"other"), "again")
            assert first.first_id == "again", "it had gone"

    asyncio.run(use())


def test_servers_that_are_away_fail_no_request(tmp_path: Path) -> None:
    cluster = NatsCluster(tmp_path, size=1)

    async def use() -> None:
        async with KEY_DRIVERS.on(cluster) as open:
            keys = await open()
            key = IdempotencyKey("k", b"1")
            assert await keys.claim(A, key, "one") == Claimed("one", b"")
            cluster.kill("n1")
            async with asyncio.timeout(30):
                assert await keys.claim(A, key, "two", b"d") == Claimed("two", b"d")

    try:
        asyncio.run(use())
    finally:
        cluster.stop()


@pytest.mark.slow
def test_what_put_returned_any_edge_finds_at_once_also_while_a_leader_dies(tmp_path: Path) -> None:
    """Three servers, of which any may answer a read, and one is killed -9."""
    cluster = NatsCluster(tmp_path, size=3)

    async def use() -> None:
        async with RESPONSE_DRIVERS.on(cluster) as open:
            one, other = await open(), await open()
            assert isinstance(one, NatsResponses)
            num_found = 0
            for id in map(str, itertools.count()):
                if id == "500":
                    cluster.kill(await cluster.leader(one.stream.name))
                if num_found == 1000:
                    return
                try:
                    await one.put(A, id, stored(id))
                except Unavailable:  # there is no leader
                    continue
                assert await patient(lambda id=id: other.get(A, id)) == stored(id)
                num_found += 1

    try:
        asyncio.run(use())
    finally:
        cluster.stop()


def test_what_a_zone_keeps_is_in_no_others_servers(tmp_path: Path) -> None:
    marker = "Wolpertinger"
    zones = {name: NatsCluster(tmp_path / name, size=1) for name in ("eu", "us")}

    async def use() -> None:
        async with RESPONSE_DRIVERS.on(zones["eu"]) as eu, RESPONSE_DRIVERS.on(zones["us"]) as us:
            await (await eu()).put(A, "resp_eu.1", stored(marker))
            await (await us()).put(A, "resp_us.1", stored("x"))

    try:
        asyncio.run(use())
    finally:
        for cluster in zones.values():
            cluster.stop()
    found = {
        file.relative_to(tmp_path).parts[0]
        for file in tmp_path.rglob("*")
        if file.is_file() and marker.encode() in file.read_bytes()
    }
    assert found == {"eu"}


def test_nothing_but_messages_remains_at_the_servers(cluster: NatsCluster) -> None:
    states = []

    async def use() -> None:
        streams: list[KeyedStream] = []

        def made(stream: KeyedStream) -> Responses:
            streams.append(stream)
            return NatsResponses(stream)

        drivers = Drivers[Responses](spec=RESPONSES, nats=made, sqlite=ResponseStore)
        async with drivers.on(cluster) as open:
            store = await open()
            for turn in range(3):
                await store.put(A, "r", LARGE)
                await store.put(A, f"r{turn}", stored())
                await store.delete(A, f"r{turn}")
                states.append(await streams[0].state())
            await store.delete(A, "r")
            states.append(await streams[0].state())

    asyncio.run(use())
    assert [(each.num_messages, each.num_consumers) for each in states] == [(4, 0)] * 3 + [(0, 0)]
