"""Messages by key on real NATS servers: each write has one effect, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.regions.drivers.faults import FAULTS, Fault, FaultPlan
from tests.regions.drivers.nats_server import NatsCluster
from tests.regions.drivers.small_stream import SPEC, until

from skerry.errors import Unavailable
from skerry_regions.drivers.jetstream.answers import StreamFull
from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.follower import StreamFollower
from skerry_regions.drivers.jetstream.specs import MIB, StreamSpec, key_of
from skerry_regions.drivers.jetstream.stream import KeyedStream, RevisionConflict, Stored, Write


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path_factory.mktemp("nats"), size=1)
    yield cluster
    cluster.stop()


@asynccontextmanager
async def opened(
    cluster: NatsCluster, spec: StreamSpec = SPEC, plan: FaultPlan | None = None, zone: str = "eu"
) -> AsyncGenerator[KeyedStream]:
    jetstream = JetStream(cluster.state, make_client=Client if plan is None else plan.client)
    await jetstream.open((spec, zone))
    assert jetstream.problem == ""
    try:
        yield KeyedStream(jetstream, spec, zone)
    finally:
        await jetstream.close()


def test_a_write_stands_under_its_expectation(server: NatsCluster) -> None:
    async def use() -> None:
        async with opened(server) as stream:
            assert await stream.last("a.1") is None
            first = await stream.write(Write("a.1", b"one", expected=0))
            stored = await stream.last("a.1")
            assert stored is not None
            assert (stored.key, stored.data, stored.sequence) == ("a.1", b"one", first)
            with pytest.raises(RevisionConflict) as refused:
                await stream.write(Write("a.1", b"two", expected=0))
            assert refused.value.found == stored
            second = await stream.write(Write("a.1", b"two", expected=first))
            with pytest.raises(RevisionConflict):
                await stream.write(Write("a.1", b"three", expected=first))
            last = await stream.last("a.1")
            assert last is not None
            assert (last.data, last.sequence) == (b"two", second)
            await stream.delete("a.1")
            assert await stream.last("a.1") is None

    asyncio.run(use())


def test_the_same_write_twice_has_one_effect(server: NatsCluster) -> None:
    async def use() -> None:
        async with opened(server) as stream:
            write = Write("b", b"one", expected=0)
            first = await stream.write(write)
            assert await stream.write(write) == first
            second = await stream.write(Write("b", b"two", expected=first))
            with pytest.raises(RevisionConflict):
                await stream.write(write)
            last = await stream.last("b")
            assert last is not None
            assert (last.data, last.sequence) == (b"two", second)
            assert await stream.count("b") == 1

    asyncio.run(use())


@pytest.mark.parametrize("fault", FAULTS)
def test_a_record_that_two_change_loses_no_change_whatever_fails(
    server: NatsCluster, fault: Fault
) -> None:
    """At each request of the first: reads, writes, and reads after a conflict."""

    async def count(stream: KeyedStream, key: str, name: str, number: int) -> None:
        while True:
            try:
                found = await stream.last(key)
            except Unavailable:
                await asyncio.sleep(0.05)
                continue
            counts, revision = (json.loads(found.data), found.sequence) if found else ({}, 0)
            counts[name] = number
            try:
                await stream.write(Write(key, json.dumps(counts).encode(), expected=revision))
                return
            except RevisionConflict as conflict:
                if conflict.found and json.loads(conflict.found.data).get(name) == number:
                    return

    async def run(at: int) -> bool:
        plan, key = FaultPlan(fault, at, server), key_of("c", fault, str(at))
        async with opened(server, plan=plan) as one, opened(server) as other:
            plan.is_armed = True
            for number in (1, 2):
                await asyncio.gather(count(one, key, "a", number), count(other, key, "b", number))
            last = await other.last(key)
            assert last is not None
            assert json.loads(last.data) == {"a": 2, "b": 2}
        return plan.was_hit

    at = 0
    while asyncio.run(run(at)):
        at += 1
    assert at >= 4


class Deafened(Client):
    """Of which a request is cancelled just as its answer comes, as `asyncio.wait_for` has it."""

    async def request(self, *args: Any, **options: Any) -> Msg:
        answer = await super().request(*args, **options)
        task = asyncio.current_task()
        if task is not None and task.get_name() == "ended":
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        return answer


def test_a_cancellation_that_comes_with_an_answer_is_not_lost(server: NatsCluster) -> None:
    async def use() -> None:
        jetstream = JetStream(server.state, make_client=Deafened)
        await jetstream.open((SPEC, "eu"))
        stream = KeyedStream(jetstream, SPEC, "eu")
        assert (await stream.state()).num_messages >= 0
        ended = asyncio.create_task(stream.state(), name="ended")
        await asyncio.wait([ended])
        assert ended.cancelled()
        await jetstream.close()

    asyncio.run(use())


def test_a_full_stream_refuses(server: NatsCluster) -> None:
    spec = StreamSpec(table="full", max_bytes=4096, max_message_bytes=1024)

    async def use() -> None:
        async with opened(server, spec) as stream:

            async def fill() -> None:
                for number in range(100):
                    await stream.write(Write(f"k.{number}", bytes(500), expected=0))

            with pytest.raises(StreamFull, match="skerry-full-eu is full"):
                await fill()
            state = await stream.state()
            assert 0 < state.num_bytes <= state.max_bytes == 4096

    asyncio.run(use())


def test_immutable_values_are_read_anywhere_and_time_ends_them(server: NatsCluster) -> None:
    spec = StreamSpec(
        table="short", max_bytes=MIB, max_message_bytes=1024, is_immutable=True, has_ttl=True
    )

    async def use() -> None:
        async with opened(server, spec) as stream:
            sequence = await stream.write(Write("a", b"x", expected=0, ttl_seconds=1))
            assert await stream.get("a") == Stored("a", b"x", sequence, (await stored_id(stream)))
            assert await stream.get("b") is None
            async with asyncio.timeout(60):
                while await stream.get("a") is not None:  # noqa: ASYNC110  (a server's)
                    await asyncio.sleep(0.05)

    async def stored_id(stream: KeyedStream) -> str:
        found = await stream.last("a")
        assert found is not None
        return found.id

    asyncio.run(use())


def test_who_follows_gets_what_is_there_and_what_comes(server: NatsCluster) -> None:
    async def use() -> None:
        async with opened(server, zone="follow") as stream:
            await stream.write(Write("a", b"1"))
            await stream.write(Write("a", b"2"))
            seen: list[tuple[str, bytes]] = []
            follower = StreamFollower(stream, lambda stored: seen.append((stored.key, stored.data)))
            follower.start()
            await until(lambda: seen == [("a", b"2")])
            await stream.write(Write("b", b"3"))
            await until(lambda: seen[1:] == [("b", b"3")])
            state = await stream.state()
            assert state.num_consumers == 1
            # its consumer dies without a word
            names = await stream.jetstream.call(f"CONSUMER.NAMES.{stream.name}", {})
            for name in names["consumers"]:
                await stream.jetstream.call(f"CONSUMER.DELETE.{stream.name}.{name}")
            await stream.write(Write("c", b"4"))
            await until(lambda: seen[2:] == [("c", b"4")], seconds=10)
            await follower.close()

    asyncio.run(use())


def test_who_has_caught_up_with_an_empty_stream_knows_which_it_is(server: NatsCluster) -> None:
    async def use() -> None:
        async with opened(server, zone="empty") as stream:
            follower = StreamFollower(stream, lambda stored: None)  # that has not looked itself
            await follower.caught_up()
            assert follower.created == (await stream.state()).created != ""

    asyncio.run(use())


def test_who_follows_is_told_of_a_store_that_forgot(tmp_path: Path) -> None:
    cluster = NatsCluster(tmp_path, size=1)

    async def use() -> None:
        async with opened(cluster) as stream:
            for number in range(3):
                await stream.write(Write(f"k{number}", b"x"))
            seen: list[str] = []
            lost: list[bool] = []
            follower = StreamFollower(
                stream, lambda stored: seen.append(stored.key), lambda: lost.append(True)
            )
            follower.start()
            await until(lambda: len(seen) == 3)
            await stream.jetstream.call(f"STREAM.DELETE.{stream.name}")
            await stream.jetstream.call(f"STREAM.CREATE.{stream.name}", SPEC.config("eu", 1))
            await stream.write(Write("new", b"x"))
            await until(lambda: lost == [True] and seen[3:] == ["new"], seconds=10)
            await follower.close()

    asyncio.run(use())
    cluster.stop()


def test_keys_have_no_characters_that_subjects_may_not() -> None:
    assert key_of("0123abc", "T_a-b") == "0123abc.T_a-b"
    assert key_of("issuer:a b", "*") == "=6973737565723a612062.=2a"
    assert key_of("=61") != key_of("a")
