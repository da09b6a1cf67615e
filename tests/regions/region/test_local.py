"""A region in the edge's own process keeps the promises of `RegionClient`."""

from __future__ import annotations

import asyncio

import pytest
from tests.regions.toy_node import MODEL, NUM_BLOCKS, Gate, expected, node_of, submit, toy_engine

from skerry.errors import InternalError, ModelNotFound, Overloaded, RequestTimeout, Unavailable
from skerry_regions.region.local import LocalRegion
from skerry_regions.wire.client import RegionClient, TokenStream, error_of
from skerry_regions.wire.protocol import Done, Failed, Tokens


async def read(stream: TokenStream) -> tuple[list[int], Done]:
    ids: list[int] = []
    async for event in stream:
        if isinstance(event, Done):
            return ids, event
        ids += event.token_ids
    raise AssertionError("the stream ended without Done")


def test_tokens_then_done_then_nothing() -> None:
    async def scenario() -> None:
        async with node_of(toy_engine()) as node:
            region: RegionClient = LocalRegion(node)
            assert region.models() == {MODEL}
            stream = await region.generate(submit())
            ids, done = await read(stream)
            assert ids == expected([3, 1, 4], 5)
            assert done.finish_reason == "length"
            with pytest.raises(StopAsyncIteration):
                await anext(aiter(stream))

    asyncio.run(scenario())


def test_rejections_are_raised_before_the_stream_exists() -> None:
    async def scenario() -> None:
        async with node_of(toy_engine()) as node:
            with pytest.raises(ModelNotFound):
                await LocalRegion(node).generate(submit(model="@cf/other"))

    asyncio.run(scenario())


def test_a_reader_may_come_late() -> None:
    async def scenario() -> None:
        async with node_of(toy_engine()) as node:
            region = LocalRegion(node)
            late = await region.generate(submit(max_tokens=50))
            await read(await region.generate(submit(max_tokens=200)))  # ends long after `late` did
            assert (await read(late))[0] == expected([3, 1, 4], 50)

    asyncio.run(scenario())


def test_abort_is_a_plain_call_and_done_still_comes() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with node_of(engine := toy_engine(before_step=gate)) as node:
            stream = await LocalRegion(node).generate(submit(max_tokens=900))
            await gate.reached()
            stream.abort()
            stream.abort()
            gate.opened.set()
            ids, done = await read(stream)
            assert ids == []
            assert done.finish_reason == "cancelled"
            stream.abort()
        assert engine.pool.num_idle == NUM_BLOCKS

    asyncio.run(scenario())


def test_a_cancelled_reader_can_abort_and_a_new_one_can_go_on() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with node_of(toy_engine(before_step=gate)) as node:
            stream = await LocalRegion(node).generate(submit())
            reader = asyncio.create_task(read(stream))
            await gate.reached()
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            gate.opened.set()
            assert (await read(stream))[0] == expected([3, 1, 4], 5)

    asyncio.run(scenario())


def test_failures_are_raised_from_the_iterator() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with node_of(toy_engine(before_step=gate)) as node:
            region = LocalRegion(node)
            expired = await region.generate(submit(seconds_left=0.01))
            with pytest.raises(RequestTimeout, match="after 0 tokens"):
                await read(expired)
            cut_off = await region.generate(submit())
            closing = asyncio.create_task(region.close())
            with pytest.raises(Unavailable, match="shutting down"):
                await read(cut_off)
            with pytest.raises(StopAsyncIteration):
                await anext(aiter(cut_off))
            gate.opened.set()
            await closing

    asyncio.run(scenario())


def test_a_buffer_holds_at_most_what_the_request_may_make() -> None:
    async def scenario() -> None:
        async with node_of(toy_engine()) as node:
            region = LocalRegion(node)
            unread = await region.generate(submit(max_tokens=40))
            await read(await region.generate(submit(max_tokens=200)))
            events = [event async for event in unread]
            assert sum(len(e.token_ids) for e in events if isinstance(e, Tokens)) == 40
            assert len(events) <= 41

    asyncio.run(scenario())


def test_errors_of_failed() -> None:
    failed = Failed(stream=1, code="overloaded", message="full", retry_after=2.5)
    error = error_of(failed)
    assert isinstance(error, Overloaded)
    assert (error.message, error.retry_after) == ("full", 2.5)
    assert isinstance(error_of(Failed(stream=1, code="nonsense", message="m")), InternalError)
