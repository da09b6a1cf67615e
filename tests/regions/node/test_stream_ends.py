"""Streams of a node that end before their end: aborts, deadlines, crashes, a node that closes."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.regions.toy_node import (
    MODEL,
    NUM_BLOCKS,
    Events,
    Gate,
    expected,
    node_of,
    submit,
    toy_engine,
)

from skerry.errors import (
    Unavailable,
)
from skerry_core.batch import ForwardBatch
from skerry_regions.wire.protocol import Done, Failed


def test_abort_ends_a_stream_with_done_and_frees_its_blocks() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with node_of(engine := toy_engine(before_step=gate)) as node:
            events = Events()
            attempt = node.submit(submit(max_tokens=900), events)
            await gate.reached()
            attempt.abort()
            attempt.abort()
            gate.opened.set()
            _, last = await events.all()
            assert isinstance(last, Done)
            assert last.finish_reason == "cancelled"
            attempt.abort()  # after the end: harmless
        assert engine.pool.num_idle == NUM_BLOCKS

    asyncio.run(scenario())


def test_a_deadline_fails_the_stream_and_frees_its_blocks() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with node_of(engine := toy_engine(before_step=gate)) as node:
            events = Events()
            node.submit(submit(max_tokens=900, seconds_left=0.01), events)
            ids, last = await events.all()
            assert ids == []
            assert last == Failed(
                stream=1, code="timeout", message="the deadline passed after 0 tokens"
            )
            gate.opened.set()
            after = Events()
            node.submit(submit(), after)  # the engine is free for others
            assert (await after.all())[0] == expected([3, 1, 4], 5)
            assert events.queue.empty()
        assert engine.pool.num_idle == NUM_BLOCKS

    asyncio.run(scenario())


def test_a_newer_attempt_at_a_request_ends_the_older() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with node_of(toy_engine(before_step=gate)) as node:
            older, newer, stranger = Events(), Events(), Events()
            node.submit(submit(epoch=1, max_tokens=900), older)
            node.submit(submit(epoch=1, max_tokens=6, tenant="other"), stranger)
            await gate.reached()
            node.submit(submit(epoch=2), newer)
            gate.opened.set()
            _, last = await older.all()
            assert isinstance(last, Done)
            assert last.finish_reason == "cancelled"
            assert (await newer.all())[0] == expected([3, 1, 4], 5)
            assert (await stranger.all())[0] == expected([3, 1, 4], 6)

    asyncio.run(scenario())


def test_a_crashed_engine_fails_its_streams_and_only_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def crash(batch: ForwardBatch) -> None:
        raise MemoryError("secret detail")

    async def scenario() -> None:
        async with node_of(toy_engine(before_step=crash), toy_engine()) as node:
            events = [Events(), Events()]
            for each in events:
                node.submit(submit(), each)
            for each in events:
                ids, last = await each.all()
                assert ids == []
                assert isinstance(last, Failed)
                assert last.code == "unavailable"
                assert "secret" not in last.message
            assert node.models == {f"{MODEL}-1"}
            assert [status.state for status in node.status()] == ["failed", "ready"]
            with pytest.raises(Unavailable, match="stopped on an error of its own"):
                node.submit(submit(), Events())
            healthy = Events()
            node.submit(submit(model=f"{MODEL}-1"), healthy)
            assert isinstance((await healthy.all())[1], Done)

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "secret detail" in caplog.text


def test_closing_fails_what_runs_and_refuses_what_comes() -> None:
    async def scenario() -> None:
        gate = Gate()
        events = Events()
        async with node_of(toy_engine(before_step=gate)) as node:
            node.submit(submit(max_tokens=900), events)
            await gate.reached()
            closing = asyncio.create_task(node.close())
            _, last = await events.all()
            assert isinstance(last, Failed)
            assert last.code == "unavailable"
            with pytest.raises(Unavailable, match="shutting down"):
                node.submit(submit(), Events())
            gate.opened.set()
            await closing
            assert node.models == frozenset()

    asyncio.run(scenario())


def test_a_broken_sink_costs_nobody_else_their_tokens(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: object) -> None:
        raise OSError("gone")

    async def scenario() -> None:
        async with node_of(toy_engine()) as node:
            events = Events()
            node.submit(submit(max_tokens=900), broken)
            node.submit(submit(), events)
            assert (await events.all())[0] == expected([3, 1, 4], 5)

    asyncio.run(scenario())
    assert "sink" in caplog.text
