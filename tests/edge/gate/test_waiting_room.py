"""`WaitingRoom`: requests for models without a node wait for one, within bounds."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.clock import Clock

from skerry.errors import Overloaded, RequestTimeout, Unavailable
from skerry_edge.gate.waiting_room import WaitingRoom
from skerry_regions.wire.client import TokenStream
from skerry_regions.wire.protocol import Embed, Sampling, Submit

pytestmark = pytest.mark.anyio


class Sleepy:
    """A region whose models come when they are told to."""

    def __init__(self) -> None:
        self.awake: set[str] = set()
        self.submitted: list[Submit] = []

    async def generate(self, submit: Submit) -> TokenStream:
        self.submitted.append(submit)
        stream: Any = SimpleNamespace()
        return stream  # type: ignore[no-any-return]

    async def embed(self, embed: Embed) -> bytes:
        return b"vectors"

    def models(self) -> frozenset[str]:
        return frozenset(self.awake)

    async def close(self) -> None: ...


def submit(model: str = "m", seconds_left: float | None = 60.0) -> Submit:
    return Submit(
        stream=1, request_id="r", model=model, prompt_ids=[1], sampling=Sampling(),
        seconds_left=seconds_left,
    )  # fmt: skip


async def settled() -> None:
    """All tasks have run until they wait."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_request_waits_until_its_model_has_a_node() -> None:
    region, clock = Sleepy(), Clock()
    room = WaitingRoom(region, is_starting=lambda model: True, clock=clock)
    asked = asyncio.create_task(room.generate(submit()))
    other = asyncio.create_task(
        room.embed(
            Embed(stream=1, request_id="e", model="n", texts=[[1]], pooling="cls", normalize=True)
        )
    )
    await settled()
    assert (room.held, region.submitted) == ({"m": 1, "n": 1}, [])
    clock.now += 45.0
    region.awake = {"m"}
    await asked
    assert room.held == {"n": 1}
    [passed] = region.submitted
    assert passed.seconds_left == 15.0, "less what it waited"
    region.awake = {"m", "n"}
    assert await other == b"vectors"


async def test_a_model_with_a_node_is_not_waited_for() -> None:
    region = Sleepy()
    region.awake = {"m"}
    await WaitingRoom(region, max_held=0).generate(submit())
    assert region.submitted == [submit()]


async def test_the_deadline_ends_the_wait() -> None:
    clock = Clock()
    room = WaitingRoom(Sleepy(), is_starting=lambda model: True, clock=clock)
    asked = asyncio.create_task(room.generate(submit(seconds_left=7200.0)))
    await settled()
    clock.now += 7200.0
    with pytest.raises(RequestTimeout, match="no node of m"):
        await asked
    assert room.held == {}


async def test_the_deadline_is_as_far_as_the_caller_set_it() -> None:
    region, clock = Sleepy(), Clock()
    asked = asyncio.create_task(
        WaitingRoom(region, is_starting=lambda model: True, clock=clock).generate(
            submit(seconds_left=7200.0)
        )
    )
    await settled()
    clock.now += 7199.0
    region.awake = {"m"}
    await asked
    assert [passed.seconds_left for passed in region.submitted] == [1.0]


async def test_no_more_than_a_room_full_wait() -> None:
    room = WaitingRoom(Sleepy(), max_held=1)
    first = asyncio.create_task(room.generate(submit()))
    await settled()
    with pytest.raises(Overloaded) as refused:
        await room.generate(submit("n"))
    assert refused.value.retry_after == 5.0
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert room.held == {}, "who goes away makes room"


async def test_nobody_is_held_for_long_while_no_node_is_started() -> None:
    """By a control plane that is away, for instance."""
    clock, starting = Clock(), {"m"}
    room = WaitingRoom(
        Sleepy(), is_starting=lambda model: model in starting, hold_seconds=lambda: 30.0,
        clock=clock,
    )  # fmt: skip
    embed = Embed(stream=1, request_id="e", model="n", texts=[[1]], pooling="cls", normalize=True)
    asked = asyncio.create_task(room.generate(submit(seconds_left=7200.0)))
    other = asyncio.create_task(room.embed(embed))
    await asyncio.sleep(0.12)
    clock.now += 29.0
    await asyncio.sleep(0.12)
    assert room.held == {"m": 1, "n": 1}
    clock.now += 1.0
    with pytest.raises(Unavailable, match="no node of n is being started") as refused:
        await other
    assert (refused.value.status, refused.value.retry_after) == (503, 5.0)
    assert not asked.done(), "its node loads"
    starting.clear()
    clock.now += 30.0
    with pytest.raises(Unavailable):
        await asked
    assert room.held == {}
