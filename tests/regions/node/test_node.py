"""A node over real engines with the toy model: events, refusals, deadlines, crashes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from tests.regions.toy_node import (
    MODEL,
    NUM_BLOCKS,
    VOCAB,
    Events,
    Gate,
    expected,
    node_of,
    submit,
    toy_engine,
)

from skerry.errors import (
    InvalidInput,
    ModelNotFound,
    Overloaded,
    PromptTooLong,
    RequestTimeout,
    Unavailable,
)
from skerry_core.batch import ForwardBatch
from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.runners.toy import ToyRunner
from skerry_regions.wire.protocol import Done, Failed, Tokens

# --- streams -------------------------------------------------------------------------------------


def test_a_stream_gets_its_tokens_and_one_done() -> None:
    async def scenario() -> None:
        async with node_of(engine := toy_engine()) as node:
            events = Events()
            node.submit(submit([3, 1, 4], stream=7), events)
            ids, last = await events.all()
            assert ids == expected([3, 1, 4], 5)
            assert isinstance(last, Done)
            assert (last.stream, last.finish_reason) == (7, "length")
            assert (last.usage.prompt_tokens, last.usage.output_tokens) == (3, 5)
            assert events.queue.empty()
            assert node.status()[0].streams == 0
        assert engine.pool.num_idle == NUM_BLOCKS

    asyncio.run(scenario())


def test_a_transcript_is_continued_at_its_index() -> None:
    async def scenario() -> None:
        said = expected([3, 1, 4], 5)
        async with node_of(toy_engine()) as node:
            events = Events()
            node.submit(submit([3, 1, 4], output_ids=said[:2]), events)
            rest, last = await events.all(start=2)
            assert rest == said[2:]
            assert isinstance(last, Done)
            assert last.usage.output_tokens == 5

    asyncio.run(scenario())


def test_logprobs_and_prompt_logprobs_reach_the_stream() -> None:
    async def scenario() -> None:
        async with node_of(toy_engine()) as node:
            events = Events()
            node.submit(submit([3, 1], max_tokens=1, logprobs=2, prompt_logprobs=0), events)
            event = await events.queue.get()
            assert isinstance(event, Tokens)
            assert event.logprobs is not None
            assert event.prompt_logprobs is not None
            [(chosen, top)] = event.logprobs
            assert top[0][0] == event.token_ids[0]
            assert chosen == pytest.approx(top[0][1])
            assert [entry[1] for entry in event.prompt_logprobs] == [[]]  # of the second token

    asyncio.run(scenario())


def test_every_output_of_a_step_crosses_to_the_loop_in_one_call() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        calls: list[int] = []
        cross_over = loop.call_soon_threadsafe

        def counted(callback: Callable[..., object], *args: object, **more: object) -> object:
            calls.append(1)
            return cross_over(callback, *args, **more)  # type: ignore[arg-type]

        gate = Gate()
        engine = toy_engine(before_step=gate)
        async with node_of(engine) as node:
            first = Events()
            node.submit(submit(max_tokens=1), first)
            await gate.reached()
            others = [Events() for _ in range(16)]
            for events in others:  # these all run side by side from the second step on
                node.submit(submit(max_tokens=4), events)
            loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
            try:
                gate.opened.set()
                for events in (first, *others):
                    await events.all()
            finally:
                loop.call_soon_threadsafe = cross_over  # type: ignore[method-assign]
            assert len(calls) <= engine.statistics().steps

    asyncio.run(scenario())


def test_models_do_not_mix() -> None:
    async def scenario() -> None:
        async with node_of(toy_engine(), toy_engine()) as node:
            assert node.models == {MODEL, f"{MODEL}-1"}
            one, two = Events(), Events()
            node.submit(submit([1, 2]), one)
            node.submit(submit([1, 2], model=f"{MODEL}-1"), two)
            assert (await one.all())[0] == (await two.all())[0] == expected([1, 2], 5)

    asyncio.run(scenario())


# --- refusals ------------------------------------------------------------------------------------


def test_refusals_come_before_any_event_and_leave_nothing_behind() -> None:
    async def scenario() -> None:
        async with node_of(engine := toy_engine()) as node:
            events = Events()
            for wrong, kind, what in (
                (submit(model="@cf/other"), ModelNotFound, f"serves {MODEL}, not @cf/other"),
                (submit([]), InvalidInput, "no tokens"),
                (submit([VOCAB]), InvalidInput, f"token {VOCAB}"),
                (submit(top_p=float("nan")), InvalidInput, "top_p"),
                (submit([1] * 1020), PromptTooLong, "context of 1024"),
                (submit(seconds_left=0.0), RequestTimeout, "deadline"),
            ):
                with pytest.raises(kind, match=what):
                    node.submit(wrong, events)
            assert events.queue.empty()
            assert node.status()[0].streams == 0
        assert engine.pool.num_idle == NUM_BLOCKS

    asyncio.run(scenario())


def test_a_request_beyond_the_kv_memory_is_too_long() -> None:
    async def scenario() -> None:
        runner = ToyRunner(num_blocks=2, vocab_size=VOCAB, max_context=1024)
        async with node_of(Engine(runner, EngineConfig(), model_key=b"toy")) as node:
            with pytest.raises(PromptTooLong, match="blocks of KV memory, this engine has 2"):
                node.submit(submit([1] * 200), Events())

    asyncio.run(scenario())


def test_a_full_engine_says_when_to_come_back() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with node_of(toy_engine(before_step=gate, max_running=1, max_waiting=1)) as node:
            accepted = [Events(), Events()]
            for events in accepted:
                node.submit(submit(), events)
            with pytest.raises(Overloaded) as caught:
                node.submit(submit(), Events())
            assert caught.value.retry_after is not None
            assert caught.value.retry_after >= 1.0
            gate.opened.set()
            for events in accepted:
                assert isinstance((await events.all())[1], Done)

    asyncio.run(scenario())


# --- ends before the end -------------------------------------------------------------------------


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


def test_status_and_beats() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with node_of(toy_engine(before_step=gate)) as node:
            events = Events()
            node.submit(submit(), events)
            await gate.reached()
            [status] = node.status()
            assert (status.node, status.role, status.region) == ("node-1", "hybrid", "here")
            assert (status.model, status.state, status.streams) == (MODEL, "ready", 1)
            [before] = node.beats()
            assert before.running + before.waiting == 1
            gate.opened.set()
            await events.all()
            [after] = node.beats()
            assert after.steps > before.steps

    asyncio.run(scenario())
