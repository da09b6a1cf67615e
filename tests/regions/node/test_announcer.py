"""Of two processes of one name the later holds it; the earlier, which was frozen, learns so."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.regions.drivers.nats_server import NatsServer
from tests.regions.toy_nodes import until

from skerry_regions.drivers.nats_registry import NatsRegistry
from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.node.announcer import Announcer, new_incarnation
from skerry_regions.registry import LAST_INCARNATION, Member, Registry

pytestmark = pytest.mark.anyio

Open = Callable[[], Registry]
NODE = Member(id="a", kind="node", region="here", state="ready")
PROCESS = """
import asyncio, sys
from pathlib import Path
from skerry_regions.drivers.nats_registry import NatsRegistry
from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.node.announcer import Announcer, new_incarnation
from skerry_regions.registry import Member

async def main(place):
    registry = NatsRegistry(place) if "://" in place else SqliteRegistry(Path(place))
    member = Member(id="a", kind="node", region="here", incarnation=new_incarnation())
    replaced = asyncio.Event()
    announcer = Announcer(registry, lambda: member, replaced=replaced.set, renew_seconds=0.05)
    await replaced.wait()
    await announcer.withdraw()
    registry.close()

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture(params=["sqlite", "nats"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "registry.db")
        return
    server = NatsServer(tmp_path)
    yield server.url
    server.stop()


def opened(place: str) -> Registry:
    return NatsRegistry(place) if "://" in place else SqliteRegistry(Path(place))


@asynccontextmanager
async def announced(
    registry: Registry, member: Member, replaced: Callable[[], None] = lambda: None
) -> AsyncGenerator[Announcer]:
    announcer = Announcer(registry, lambda: member, replaced=replaced, renew_seconds=0.01)
    try:
        yield announcer
    finally:
        await announcer.withdraw()


async def test_who_was_frozen_learns_that_another_has_its_name(
    place: str, subprocess_env: dict[str, str]
) -> None:
    frozen = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROCESS, place, env=subprocess_env
    )
    registry = opened(place)
    try:
        async with asyncio.timeout(60):
            await until(lambda: bool(registry.members()))
            [before] = registry.members()
            frozen.send_signal(signal.SIGSTOP)
            later = replace(NODE, pid=os.getpid(), incarnation=new_incarnation())
            async with announced(registry, later):
                await until(lambda: registry.members() == [later])
                assert later.incarnation > before.incarnation
                frozen.send_signal(signal.SIGCONT)
                assert await frozen.wait() == 0
                assert registry.members() == [later], "it withdrew itself alone"
    finally:
        with contextlib.suppress(ProcessLookupError):
            frozen.kill()
        await frozen.wait()
        registry.close()


async def test_whoever_starts_goes_above_a_clock_that_was_ahead(place: str) -> None:
    registry = opened(place)
    ahead = replace(NODE, incarnation=new_incarnation(above=1 << 61))
    registry.announce(ahead, 60.0)
    replaced = asyncio.Event()
    async with asyncio.timeout(60), announced(registry, NODE, replaced.set):
        await until(lambda: registry.members()[0].incarnation > ahead.incarnation)
        assert not replaced.is_set()
    assert registry.members() == []
    registry.close()


async def test_two_that_take_a_name_in_turn_are_not_both_replaced(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path / "registry.db")
    first, second = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(60), announced(registry, NODE, first.set):
        await until(lambda: bool(registry.members()))
        async with announced(registry, replace(NODE, incarnation=1), second.set):
            await first.wait()
            assert [each.incarnation for each in registry.members()] == [1]
        assert not second.is_set()
    registry.close()


async def test_nothing_goes_above_who_was_revoked(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path / "registry.db")
    gone = replace(NODE, incarnation=LAST_INCARNATION, state="revoked")
    registry.announce(gone, 60.0)
    replaced = asyncio.Event()
    async with asyncio.timeout(60), announced(registry, NODE, replaced.set):
        await replaced.wait()
    assert registry.members() == [gone]
    registry.close()


def test_incarnations_grow_and_no_two_are_equal() -> None:
    drawn = [new_incarnation() for _ in range(3)]
    assert len(set(drawn)) == 3
    assert all(new_incarnation(above=each) > each for each in drawn)
    assert 0 < max(drawn) < LAST_INCARNATION
