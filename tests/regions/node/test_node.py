"""A node over real engines with the toy model: events, refusals, its status."""

from __future__ import annotations

import asyncio
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
)
from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.runners.toy import ToyRunner
from skerry_regions.wire.protocol import Done, Tokens


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
