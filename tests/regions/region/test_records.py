"""Records in a registry: who writes them, again and until the end, and who was replaced."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.regions.region.registries import MemoryRegistry, member
from tests.regions.toy_nodes import PATIENCE, RunningNode, hello, until

from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.node.announcer import Announcer, new_incarnation
from skerry_regions.region.directory import GATEWAY_SECONDS, Directory
from skerry_regions.registry import Member
from skerry_regions.wire.link import NodeLink

pytestmark = pytest.mark.anyio


def wipe(folder: Path) -> None:
    for file in folder.glob("registry.db*"):
        file.unlink()


async def test_who_was_replaced_is_sent_nothing_even_by_a_registry_that_forgot(
    tmp_path: Path,
) -> None:
    (tmp_path / "moved").mkdir()
    old, new = RunningNode("n", tmp_path), RunningNode("n", tmp_path / "moved")
    for each in (old, new):
        await each.listen()
    earlier = replace(member(old), incarnation=1)
    later = replace(member(new), incarnation=2)
    registry = MemoryRegistry()
    directory = Directory(registry, hello("edge"), patience=PATIENCE, poll_seconds=0.01)

    async def served_by(member: Member) -> NodeLink:
        def serves() -> bool:
            link = directory.link("n")
            return directory.members.get("n") == member and link is not None and link.is_up

        await until(serves)
        link = directory.link("n")
        assert link is not None
        return link

    async with asyncio.timeout(60):
        registry.announce(earlier)
        first = await served_by(earlier)
        registry.announce(later)
        second = await served_by(later)
        assert second is not first
        registry.announce(earlier)
        await registry.was_read()
        assert (directory.link("n"), directory.members["n"]) == (second, later)
        await new.stop()
        assert await served_by(earlier) not in (first, second), "it alone is left"
    await directory.close()
    await old.stop()


async def test_an_announcer_writes_again_what_was_lost(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    registry = SqliteRegistry(path)
    described = Member(id="a", kind="node", region="here", incarnation=new_incarnation())
    announcer = Announcer(registry, lambda: described, renew_seconds=0.01)
    reader = SqliteRegistry(path)
    async with asyncio.timeout(60):
        for _ in range(2):
            await until(lambda: reader.members() == [described])
            wipe(tmp_path)
        await announcer.withdraw()
    assert reader.members() == []
    registry.close()
    reader.close()


async def test_an_announcer_tells_what_failed_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = MemoryRegistry()
    described = Member(id="a", kind="node", region="here")
    failures = [LookupError("a bug")]

    def describe() -> Member:
        if failures:
            raise failures.pop()
        return described

    announcer = Announcer(registry, describe, renew_seconds=0.01)
    async with asyncio.timeout(60):
        await until(lambda: registry.record == {"a": described})
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info is not None
    assert record.exc_info[0] is LookupError
    await announcer.withdraw()


async def test_a_record_withdrawn_while_it_is_renewed_stays_away() -> None:
    class Slow(MemoryRegistry):
        def __init__(self) -> None:
            super().__init__()
            self.has_begun, self.may_end = threading.Event(), threading.Event()

        def announce(self, member: Member, lease_seconds: float = 3.0) -> int:
            self.has_begun.set()
            self.may_end.wait(60)
            return super().announce(member, lease_seconds)

    registry = Slow()
    described = Member(id="a", kind="node", region="here")
    announcer = Announcer(registry, lambda: described)
    await asyncio.to_thread(registry.has_begun.wait, 60)
    withdrawing = asyncio.create_task(announcer.withdraw())
    await asyncio.sleep(0)
    registry.may_end.set()
    async with asyncio.timeout(60):
        await withdrawing
    assert registry.record == {}


async def test_another_region_is_known_by_its_edges_while_one_answers(tmp_path: Path) -> None:
    node, gateway = RunningNode("n", tmp_path), RunningNode("edge-far", tmp_path)
    await node.listen()
    await gateway.listen()
    described = replace(member(node), region="far")
    edge = Member(id="edge-far", kind="edge", region="far", gateway=str(gateway.address))
    own = Member(id="edge-here", kind="edge", region="here", gateway="unix:/nowhere")
    registry = MemoryRegistry()
    for each in (described, edge, own):
        registry.announce(each)
    directory = Directory(
        registry, hello("edge"), region="here", patience=PATIENCE, poll_seconds=100
    )
    async with asyncio.timeout(60):
        directory.apply([described, edge, own])
        assert list(directory.members) == ["edge-far"]
        await until(lambda: directory.links()[0].is_up)
        await gateway.stop()
        await until(lambda: not directory.links()[0].is_up)
        directory.apply([described, edge, own])
        assert list(directory.members) == ["edge-far"], "it may come back at once"
        directory._heard["edge-far"] -= GATEWAY_SECONDS
        directory.apply([described, edge, own])
        assert set(directory.members) == {"edge-far", "n"}
        assert directory.links_here() == []
    await directory.close()
    await node.stop()


async def test_an_address_is_reached_as_told(tmp_path: Path) -> None:
    directory = Directory(
        MemoryRegistry(),
        hello("edge"),
        region="here",
        reach=lambda address, region, source: f"{address}~{region}~{source}",
        patience=PATIENCE,
        poll_seconds=10,
    )
    directory.apply([Member(id="a", kind="node", region="far", address="unix:/a")])
    assert [str(link.address) for link in directory.links()] == ["unix:/a~far~here"]
    assert directory.transfer_address("a", "b") == ""
    await directory.close()
