"""Engines that crash or hang are noticed; busy and idle ones are left in peace."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.regions.toy_node import MODEL, Events, Gate, node_of, submit, toy_engine

from skerry_core.batch import ForwardBatch
from skerry_regions.node.watchdog import Watchdog

pytestmark = pytest.mark.anyio


def crash(batch: ForwardBatch) -> None:
    raise RuntimeError("out of order")


async def test_a_crashed_engine_is_lost_at_once() -> None:
    async with node_of(toy_engine(before_step=crash)) as node:
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        watchdog = Watchdog(node, lost.set_result, every=0.01, patience=60)
        node.submit(submit(), Events())
        assert await lost == watchdog.ailment == f"the engine of {MODEL} stopped on an error"


async def test_a_hung_engine_is_ill_and_then_lost() -> None:
    gate = Gate()
    async with node_of(toy_engine(before_step=gate)) as node:
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        watchdog = Watchdog(node, lost.set_result, every=0.01, patience=0.01, canary_seconds=0.05)
        node.submit(submit(), Events())
        reason = await lost
        assert reason == watchdog.ailment
        assert MODEL in reason
        gate.opened.set()


async def test_time_in_which_the_loop_is_late_does_not_count() -> None:
    gate = Gate()
    async with node_of(toy_engine(before_step=gate)) as node:
        lost: list[str] = []
        watchdog = Watchdog(node, lost.append, every=0.01, patience=0.5, canary_seconds=0.05)
        node.submit(submit(), Events())
        await asyncio.sleep(0.1)
        for _ in range(2):  # 1.2 s, of which two looks count
            time.sleep(0.6)  # noqa: ASYNC251
            await asyncio.sleep(0.05)
        assert watchdog.ailment is not None
        assert lost == []
        gate.opened.set()
        await watchdog.close()


async def test_a_sound_engine_is_not() -> None:
    async with node_of(toy_engine()) as node:
        lost: list[str] = []
        watchdog = Watchdog(node, lost.append, every=0.001, patience=0)
        events = Events()
        node.submit(submit(max_tokens=200), events)
        await events.all()
        await asyncio.sleep(0.05)
        assert (watchdog.ailment, lost) == (None, [])
        await watchdog.close()
