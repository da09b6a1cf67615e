"""Streams through another region's edge: placed there, exact, and carried on when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.regions.region.routed import DIGESTS, EqualSpeeds, FixedRegistry, member
from tests.regions.toy_nodes import (
    MODEL,
    PATIENCE,
    PROMPT,
    RunningNode,
    after_tokens,
    greedy_oracle,
    hello,
    read,
    submit,
    until,
)

from skerry.errors import Unavailable
from skerry_regions.address import Address
from skerry_regions.region.cluster_state import ClusterState
from skerry_regions.region.cost_placer import CostPlacer
from skerry_regions.region.directory import Directory
from skerry_regions.region.gateway import POLICY, RegionGateway
from skerry_regions.region.placer import EarlierAttempts
from skerry_regions.region.recovery import RecoveryPolicy
from skerry_regions.region.region_figures import queue_seconds, region_rtts
from skerry_regions.region.region_reports import RegionReports
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.registry import Member
from skerry_regions.wire.listener import NodeServer
from skerry_regions.wire.protocol import Done, Sampling

pytestmark = pytest.mark.anyio

LONG = [(5 * i + 1) % 250 for i in range(64 * 40)]


class Edge:
    """The regions' half of an edge, with its gateway."""

    def __init__(
        self, region: str, path: Path, registry: FixedRegistry, id: str | None = None
    ) -> None:
        self.id = id or f"edge-{region}"
        state = ClusterState(region)
        self.directory = Directory(
            registry, hello(self.id), state, region=region, patience=PATIENCE, poll_seconds=0.02
        )
        self.placer = CostPlacer(self.directory, state, {MODEL: b"toy"}, Random(1))
        self.placer.observations.speeds = EqualSpeeds()
        policy = RecoveryPolicy(patience=1.0, start_patience=0.2, pause=0.01)
        self.region = RemoteRegion(self.directory.links, self.placer, policy)
        here = RemoteRegion(self.directory.links_here, self.placer.here(), POLICY)
        self.gateway = RegionGateway(
            self.id, "global", here, RegionReports(self.id, self.placer, [MODEL], 1)
        )
        self.server = NodeServer(self.gateway, hello(self.id), 0.02, self.directory.is_peer)
        self.placer.sent.tell_by(self.server.tell_peers)
        self.address = Address(path=str(path / f"{self.id}.gateway"))
        self.member = Member(id=self.id, kind="edge", region=region, gateway=str(self.address))

    async def close(self) -> None:
        await self.server.close()
        await self.gateway.close()
        await self.directory.close()


class Regions:
    """`near` and `far`, each with an edge; `far` has nodes, `near` may have one."""

    def __init__(self, near: Edge, far: Edge, nodes: dict[str, RunningNode]) -> None:
        self.near, self.far, self.nodes = near, far, nodes

    def computed(self, name: str) -> int:
        return sum(self.nodes[name].gate.tokens)

    def sees_far(self) -> bool:
        """Whether near's edge could send streams there."""
        return "edge-far" in self.near.placer.observations.view(MODEL).nodes

    def far_holds(self) -> int:
        """Blocks of the prompt, as near's edge was told."""
        found = self.near.placer.summaries.cached(MODEL, DIGESTS)
        return found["edge-far"].blocks if "edge-far" in found else 0


@asynccontextmanager
async def regions(path: Path, near: int = 0, far: int = 1) -> AsyncGenerator[Regions]:
    """So many nodes in each."""
    places = {f"near-{i}": "near" for i in range(near)} | {f"far-{i}": "far" for i in range(far)}
    nodes = {name: RunningNode(name, path, num_blocks=256) for name in places}
    registry = FixedRegistry([])
    edges = [Edge(region, path, registry) for region in ("near", "far")]
    for node in nodes.values():
        await node.listen()
    for edge in edges:
        await edge.server.listen(edge.address)
    registry.present = [
        *(member(node, region=places[name]) for name, node in nodes.items()),
        *(edge.member for edge in edges),
    ]
    made = Regions(edges[0], edges[1], nodes)
    try:
        async with asyncio.timeout(60):
            await until(lambda: len(made.near.directory.links()) == near + 1)
            await until(lambda: len(made.far.directory.links()) == far + 1)
            await until(lambda: all(link.is_up for link in made.near.directory.links()))
            await until(lambda: all(link.is_up for link in made.far.directory.links()))
            await until(lambda: made.sees_far() == bool(far))
        yield made
    finally:
        for edge in edges:
            await edge.close()
        for node in nodes.values():
            await node.stop()


async def test_another_region_is_one_node_and_its_edge_chooses(tmp_path: Path) -> None:
    async with regions(tmp_path, far=2) as r:
        assert list(r.near.directory.members) == ["edge-far"]
        stream = await r.near.region.generate(submit())
        ids, _, done = await read(stream)
        assert ids == greedy_oracle(40)
        assert (done.usage.prompt_tokens, done.usage.output_tokens) == (len(PROMPT), 40)
        assert stream.explanation.startswith('"edge-far";')
        assert sorted([r.computed("far-0") > 0, r.computed("far-1") > 0]) == [False, True]


@pytest.mark.parametrize("grown", [{}, {"temperature": 20.0, "seed": 3, "repetition_penalty": 1.2}])
async def test_a_node_that_dies_behind_it_is_its_edges_affair(
    tmp_path: Path, grown: dict[str, Any]
) -> None:
    sampling = Sampling(max_tokens=40, logprobs=2, **grown)
    async with regions(tmp_path, far=2) as r:
        expected = await read(await r.near.region.generate(submit(sampling=sampling)))
        for node in r.nodes.values():
            node.gate.hold_after(5)
            node.gate.tokens.clear()
        stream = await r.near.region.generate(submit(sampling=sampling, request_id="s"))
        ids, logprobs = await after_tokens(stream, 3)
        first = next(name for name in r.nodes if r.computed(name))
        await r.nodes[first].stop()
        for node in r.nodes.values():
            node.gate.open.set()
        ids, logprobs, _ = await read(stream, ids, logprobs)
        assert (ids, logprobs) == expected[:2]
        assert stream.num_attempts == 1


async def test_a_region_that_is_lost_costs_no_stream(tmp_path: Path) -> None:
    async with regions(tmp_path, near=1) as r:
        r.nodes["near-0"].gate.hold_after(0)  # a step that takes long: far is cheaper
        blocked = await r.near.region.generate(submit(request_id="b", prompt_ids=LONG))
        await until(lambda: len(r.near.placer.router._bookings) == 1)
        r.nodes["far-0"].gate.hold_after(6)
        stream = await r.near.region.generate(submit())
        assert stream.explanation.startswith('"edge-far";')
        ids, _ = await after_tokens(stream, 4)
        await r.far.server.close()
        r.nodes["near-0"].gate.open.set()
        ids, _, _ = await read(stream, ids)
        assert ids == greedy_oracle(40)
        await read(blocked)


async def test_prompts_find_their_prefix_in_another_region(tmp_path: Path) -> None:
    async with regions(tmp_path, near=1) as r:
        await read(await r.far.region.generate(submit()))
        await until(lambda: r.far_holds() == len(PROMPT) // 64)
        stream = await r.near.region.generate(submit(request_id="s"))
        assert stream.explanation.startswith('"edge-far";')
        _, _, done = await read(stream)
        assert done.usage.cached_tokens == 128
        assert r.computed("near-0") == 0


async def test_giving_up_frees_the_node_behind(tmp_path: Path) -> None:
    async with regions(tmp_path) as r:
        r.nodes["far-0"].gate.hold_after(3)
        stream = await r.near.region.generate(submit())
        await after_tokens(stream, 3)
        stream.abort()
        r.nodes["far-0"].gate.open.set()
        last = [event async for event in stream][-1]
        assert isinstance(last, Done)
        assert last.finish_reason == "cancelled"
        await until(lambda: not r.nodes["far-0"].engine.statistics().running)


async def test_a_region_without_nodes_is_not_asked(tmp_path: Path) -> None:
    async with regions(tmp_path, near=1, far=0) as r:
        await read(await r.near.region.generate(submit()))
        with pytest.raises(Unavailable):
            await r.far.region.generate(submit(residency="eu"))


async def test_what_came_in_is_not_sent_on(tmp_path: Path) -> None:
    """Two edges without nodes do not pass a request to and fro."""
    async with regions(tmp_path, far=0) as r:
        with pytest.raises(Unavailable):
            await r.near.region.generate(submit())
        assert list(r.far.placer.here().place(submit(), EarlierAttempts())) == []


async def test_a_region_in_one_number(tmp_path: Path) -> None:
    async with regions(tmp_path, far=1) as r:
        await until(lambda: region_rtts(r.near.directory).keys() == {"far"})
        await until(lambda: 0 < region_rtts(r.far.directory).get("near", 0) < 1)
        assert queue_seconds(r.far.placer, [MODEL]) == 0.0
        assert queue_seconds(r.near.placer, [MODEL]) == 0.0  # it has no node
        r.nodes["far-0"].gate.hold_after(0)
        stream = await r.far.region.generate(submit(prompt_ids=LONG))
        assert queue_seconds(r.far.placer, [MODEL, "other"]) > 0.0
        stream.abort()
        r.nodes["far-0"].gate.open.set()


async def test_edges_of_a_region_count_what_the_others_send(tmp_path: Path) -> None:
    """One sends a long prompt: the other sees its queue at once, before the node reports it."""
    node = RunningNode("n", tmp_path, num_blocks=256)
    registry = FixedRegistry([])
    edges = [Edge("here", tmp_path, registry, id=name) for name in ("edge-1", "edge-2")]
    first, second = edges
    await node.listen()
    for edge in edges:
        await edge.server.listen(edge.address)
    registry.present = [member(node, region="here"), *(edge.member for edge in edges)]
    now = first.placer.clock
    try:
        async with asyncio.timeout(60):
            await until(lambda: all(link.is_up for e in edges for link in e.directory.links()))
            await until(lambda: all(len(edge.directory.links()) == 1 for edge in edges))
            await until(lambda: first.directory.is_peer("edge-2"))
            await until(lambda: len(first.server.links) == len(second.server.links) == 1)
            await until(lambda: [each.edge for each in first.server.links] == ["edge-2"])
            assert second.placer.router._of(MODEL).arrivals(now()) == 0.0
            node.gate.hold_after(0)
            stream = await first.region.generate(submit(prompt_ids=LONG))
            await until(lambda: second.placer.router._of(MODEL).arrivals(now()) > 0.0)
            assert len(second.placer.router._bookings._told) == 1
            told = second.placer.router._bookings._told[0]
            assert (told.prefill, told.decode, told.prompt_tokens) == ("n", "n", len(LONG))
            assert now() - told.at < 5.0
            # Nobody sends streams to an edge beside it.
            assert [link.node for link in second.directory.links()] == ["n"]
            stream.abort()
            node.gate.open.set()
            _ = [event async for event in stream]
            registry.present = [member(node, region="here"), second.member]
            await until(lambda: not second.directory.is_peer("edge-1"))
    finally:
        for edge in edges:
            await edge.close()
        await node.stop()
