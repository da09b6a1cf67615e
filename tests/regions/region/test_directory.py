"""What an edge knows of nodes: the registry's last word, and connections that outlive it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.regions.toy_nodes import MODEL, PATIENCE, RunningNode, hello, until

from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.node.announcer import Announcer, new_incarnation
from skerry_regions.region.directory import GATEWAY_SECONDS, Directory
from skerry_regions.registry import Member, RegistryUnavailable
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.reports import Report

pytestmark = pytest.mark.anyio


class MemoryRegistry:
    """A registry in memory that can be away."""

    def __init__(self) -> None:
        self.record: dict[str, Member] = {}
        self.is_away = False
        self.num_readings = 0

    def announce(self, member: Member, lease_seconds: float = 3.0) -> int:
        self._check()
        self.record[member.id] = member
        return member.incarnation

    def withdraw(self, member_id: str, incarnation: int) -> None:
        self._check()
        self.record.pop(member_id, None)

    def members(self) -> list[Member]:
        self.num_readings += 1
        self._check()
        return list(self.record.values())

    def close(self) -> None: ...

    async def was_read(self) -> None:
        """Wait until a reading that begins from now on has been taken in, and the next begins."""
        enough = self.num_readings + 2
        await until(lambda: self.num_readings >= enough)

    def _check(self) -> None:
        if self.is_away:
            raise RegistryUnavailable("away")


def wipe(folder: Path) -> None:
    for file in folder.glob("registry.db*"):
        file.unlink()


def member(node: RunningNode) -> Member:
    return Member(
        id=node.node.id, kind="node", region="here", address=str(node.address), model=MODEL
    )


class Changes:
    """A `DirectoryListener` of members alone."""

    def __init__(self, members_changed: Callable[[Mapping[str, Member]], None]) -> None:
        self._members_changed = members_changed

    def members_changed(self, members: Mapping[str, Member]) -> None:
        self._members_changed(members)

    def reported(self, link: NodeLink, member: Member, report: Report) -> None:
        pass

    def link_changed(self, link: NodeLink) -> None:
        pass

    def peer_sent(self, report: Report) -> None:
        pass


async def test_a_node_that_was_revoked_is_let_go_of_at_once(tmp_path: Path) -> None:
    node = RunningNode("a", tmp_path)
    await node.listen()
    registry = MemoryRegistry()
    directory = Directory(registry, hello("edge"), patience=PATIENCE, poll_seconds=0.01)
    registry.announce(member(node))
    async with asyncio.timeout(60):
        await directory.wait_until_served(frozenset({MODEL}))
        registry.announce(replace(member(node), address="", state="revoked"))
        await until(lambda: not directory.members)
        assert directory.links() == []
    await directory.close()
    await node.stop()


async def test_a_node_is_believed_the_model_of_its_record_alone(tmp_path: Path) -> None:
    node = RunningNode("a", tmp_path)
    await node.listen()
    registry = MemoryRegistry()
    registry.announce(replace(member(node), model="@cf/skerry/other"))
    directory = Directory(registry, hello("edge"), patience=PATIENCE, poll_seconds=0.01)
    async with asyncio.timeout(60):
        await until(lambda: any(link.is_up for link in directory.links()))
        [link] = directory.links()
        assert link.models == frozenset(), "whatever it greets with"
        registry.announce(member(node))
        await until(lambda: MODEL in link.models)
    await directory.close()
    await node.stop()


async def test_nodes_come_and_go(tmp_path: Path) -> None:
    node = RunningNode("a", tmp_path)
    await node.listen()
    registry = MemoryRegistry()
    changes: list[int] = []
    listener = Changes(lambda members: changes.append(len(members)))
    directory = Directory(registry, hello("edge"), listener, patience=PATIENCE, poll_seconds=0.01)
    registry.announce(member(node))
    async with asyncio.timeout(60):
        await directory.wait_until_served(frozenset({MODEL}))
        assert list(directory.members) == ["a"]
        registry.record.clear()  # wiped: the connection is up, so the node is there
        await registry.was_read()
        assert directory.link("a") is not None
        await node.stop()
        await until(lambda: not directory.members)
    assert directory.links() == []
    assert {0, 1} <= set(changes)
    await directory.close()


async def test_models_that_are_being_started_are_known(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    directory = Directory(registry, hello("edge"), region="here", poll_seconds=0.01)
    loading = Member(id="a", kind="node", region="far", model=MODEL, state="starting")
    registry.announce(loading)
    await registry.was_read()
    assert directory.starting == {MODEL}
    assert not directory.links(), "it listens nowhere yet"
    registry.is_away = True
    await until(lambda: not directory.starting)
    registry.is_away = False
    await until(lambda: bool(directory.starting))
    registry.announce(replace(loading, state="draining"))
    await until(lambda: not directory.starting)
    await directory.close()


async def test_the_last_word_stands_while_the_registry_is_away(tmp_path: Path) -> None:
    node = RunningNode("a", tmp_path)
    await node.listen()
    registry = MemoryRegistry()
    registry.announce(member(node))
    directory = Directory(registry, hello("edge"), patience=PATIENCE, poll_seconds=0.01)
    async with asyncio.timeout(60):
        await directory.wait_until_served(frozenset({MODEL}))
        registry.is_away = True
        await registry.was_read()
        assert list(directory.members) == ["a"]
    await directory.close()
    await node.stop()


async def test_a_placed_node_is_found_without_any_registry(tmp_path: Path) -> None:
    """What it is it says itself; where it is, and in which region, the topology says."""
    registry = MemoryRegistry()
    registry.is_away = True
    node = RunningNode("a", tmp_path, incarnation=7)
    described = replace(
        member(node), address="unix:/elsewhere", incarnation=7, kv_format="k", state="ready"
    )
    node.server.hello = replace(node.server.hello, member=described)
    placed = replace(member(node), state="starting")
    directory = Directory(
        registry, hello("edge"), patience=PATIENCE, placed=lambda: [placed], poll_seconds=0.01
    )
    async with asyncio.timeout(60):
        await until(lambda: bool(directory.members))
        assert directory.members["a"] == placed, "before it is there"
        await node.listen()
        await directory.wait_until_served(frozenset({MODEL}))
        await until(lambda: directory.members["a"].state == "ready")
        assert directory.members["a"] == replace(described, address=placed.address)
        await node.stop()
        await until(lambda: not directory.links()[0].is_up)
        await registry.was_read()
        assert directory.links()[0].models == {MODEL}, "it may come back"
    await directory.close()


@pytest.mark.parametrize(("in_registry", "known"), [(6, "said"), (7, "read"), (8, "read")])
async def test_of_a_placed_node_the_latest_word_is_believed(
    tmp_path: Path, in_registry: int, known: str
) -> None:
    node = RunningNode("a", tmp_path, incarnation=7)
    placed = member(node)
    said = replace(placed, incarnation=7, runner="said")
    node.server.hello = replace(node.server.hello, member=said)
    await node.listen()
    registry = MemoryRegistry()
    registry.announce(replace(placed, incarnation=in_registry, runner="read"))
    directory = Directory(
        registry, hello("edge"), patience=PATIENCE, placed=lambda: [placed], poll_seconds=0.01
    )
    async with asyncio.timeout(60):
        await directory.wait_until_served(frozenset({MODEL}))
        await registry.was_read()
        assert directory.members["a"].runner == known
        registry.record.clear()  # its lease lapsed, as on a full disk
        await until(lambda: directory.members["a"].runner == "said")
    await directory.close()
    await node.stop()


async def test_what_fails_on_a_change_is_told_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = MemoryRegistry()
    changes: list[int] = []

    def fails_once(members: Mapping[str, Member]) -> None:
        changes.append(len(members))
        if len(changes) == 1:
            raise LookupError("a bug")

    listener = Changes(fails_once)
    directory = Directory(registry, hello("edge"), listener, patience=PATIENCE, poll_seconds=0.01)
    registry.announce(Member(id="a", kind="node", region="here", address="unix:/nowhere"))
    async with asyncio.timeout(60):
        await until(lambda: len(changes) >= 2)
    assert list(directory.members) == ["a"]
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info is not None
    assert record.exc_info[0] is LookupError
    await directory.close()


async def test_a_node_without_a_usable_address_is_left_out_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = Directory(MemoryRegistry(), hello("edge"), patience=PATIENCE, poll_seconds=10)
    for address in ("nonsense", "nonsense", "worse"):
        directory.apply([Member(id="a", kind="node", region="here", address=address)])
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    directory.apply([Member(id="e", kind="edge", region="here", address="tcp:127.0.0.1:1")])
    assert (directory.links(), dict(directory.members)) == ([], {})
    await directory.close()


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
        await directory.links()[0].wait_until_up()
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
