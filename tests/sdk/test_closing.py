"""Clients that are closed and streams that are left, by the loop, the task or the caller."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from tests.sdk.platform import ACCOUNT, Platform
from tests.sdk.recorded_shapes import MODEL, REQUEST_ID

import skerry
from skerry import AsyncAI


def test_connections_are_used_again(platform: Platform) -> None:
    with platform.ai() as ai:
        for _ in range(3):
            ai.run(MODEL, {"prompt": "x"})
            list(ai.run(MODEL, {"prompt": "x"}, stream=True))
            with pytest.raises(skerry.ModelNotFound):
                ai.run("@test/unknown", {})
    assert len({seen.client_port for seen in platform.seen}) == 1


@pytest.mark.anyio
async def test_async_connections_are_used_again(platform: Platform) -> None:
    async with platform.async_ai() as ai:
        for _ in range(3):
            await ai.run(MODEL, {"prompt": "x"})
            assert len([chunk async for chunk in await ai.run(MODEL, {}, stream=True)]) == 5
    assert len({seen.client_port for seen in platform.seen}) == 1


def test_a_client_of_ones_own_stays_open(platform: Platform) -> None:
    with httpx.Client() as http:
        with platform.ai(http_client=http) as ai:
            ai.run(MODEL, {"prompt": "x"})
        assert not http.is_closed


# --- leaving a stream early: the platform must notice -----------------------------------------


def left(platform: Platform) -> bool:
    return platform.gone.wait(timeout=30)


def test_leaving_the_loop_closes(platform: Platform) -> None:
    with platform.ai() as ai:
        for chunk in ai.run("@test/endless", {}, stream=True):
            assert chunk.response == "on "
            break
        assert left(platform)


def test_close_and_with_close(platform: Platform) -> None:
    with platform.ai() as ai:
        stream = ai.run("@test/endless", {}, stream=True)
        assert next(stream).response == "on "
        stream.close()
        stream.close()
        assert list(stream) == []
        assert left(platform)
        platform.gone.clear()
        with ai.run("@test/endless", {}, stream=True):
            pass  # not even started
        assert left(platform)


def test_a_streams_request_id(platform: Platform) -> None:
    with platform.ai() as ai, ai.run(MODEL, {}, stream=True) as stream:
        assert stream.request_id == REQUEST_ID


@pytest.mark.anyio
async def test_async_close(platform: Platform) -> None:
    async with platform.async_ai() as ai:
        async with await ai.run("@test/endless", {}, stream=True) as stream:
            assert (await anext(stream)).response == "on "
        assert await asyncio.to_thread(left, platform)
        await stream.close()
        assert [chunk async for chunk in stream] == []


@pytest.mark.anyio
async def test_leaving_the_async_loop_closes(platform: Platform) -> None:
    async with platform.async_ai() as ai:
        async for chunk in await ai.run("@test/endless", {}, stream=True):
            assert chunk.response == "on "
            break
        assert await asyncio.to_thread(left, platform)


@pytest.mark.anyio
@pytest.mark.parametrize("model", ["@test/silent", "@test/mute"])
async def test_cancelling_the_task_closes(platform: Platform, model: str) -> None:
    async with platform.async_ai() as ai:

        async def talk() -> None:
            async for _ in await ai.run(model, {}, stream=True):
                pass

        task = asyncio.create_task(talk())
        assert await asyncio.to_thread(platform.arrived.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(left, platform)


@pytest.mark.anyio
async def test_many_streams_at_once(platform: Platform) -> None:
    async with platform.async_ai() as ai:

        async def text() -> str:
            return "".join([c.response async for c in await ai.run(MODEL, {}, stream=True)])

        assert await asyncio.gather(*(text() for _ in range(32))) == ["the sea7"] * 32


def test_async_client_is_configured_alike(platform: Platform) -> None:
    ai: AsyncAI = platform.async_ai()
    assert repr(ai) == f"AsyncAI({platform.url!r}, account_id={ACCOUNT!r})"
    asyncio.run(ai.close())
