"""Ending a task keeps what it raised by itself, and a cancellation of whoever ends it."""

from __future__ import annotations

import asyncio

import pytest

from skerry_regions.process.cancellation import end_task


def test_a_task_that_was_running_is_cancelled_and_raises_nothing() -> None:
    async def use() -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        await end_task(task)
        assert task.cancelled()

    asyncio.run(use())


def test_a_task_that_had_failed_raises_what_it_failed_with() -> None:
    async def fail() -> None:
        raise ValueError("a bug")

    async def use() -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="a bug"):
            await end_task(task)

    asyncio.run(use())


def test_whoever_is_cancelled_while_it_waits_is_cancelled_once_the_task_has_ended() -> None:
    async def end_slowly() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)

    async def use() -> None:
        task = asyncio.create_task(end_slowly())
        await asyncio.sleep(0)
        waiting = asyncio.create_task(end_task(task))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert task.done()

    asyncio.run(use())
