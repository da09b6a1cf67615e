"""What an edge knows of nodes: the registry's last word, and connections that outlive it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.regions.region.registries import MemoryRegistry, member
from tests.regions.toy_nodes import MODEL, PATIENCE, RunningNode, hello, until

from skerry_regions.region.directory import Directory
from skerry_regions.registry import Member
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.reports import Report

pytestmark = pytest.mark.anyio


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
