"""Requests bound to a zone: no node outside of it is ever asked, whatever fails inside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from tests.regions.region.routed import FixedRegistry, member
from tests.regions.toy_nodes import (
    MODEL,
    PATIENCE,
    RunningNode,
    after_tokens,
    greedy_oracle,
    hello,
    read,
    submit,
    until,
)

from skerry.errors import ModelNotFound, ResidencyUnmet, Unavailable
from skerry_regions.region.cluster_state import ClusterState
from skerry_regions.region.cost_placer import CostPlacer
from skerry_regions.region.directory import Directory
from skerry_regions.region.placer import EarlierAttempts, Route
from skerry_regions.region.recovery import RecoveryPolicy
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.protocol import Embed, Submit
from skerry_regions.zones import is_zone

pytestmark = pytest.mark.anyio

ZONES = {"fra": "eu", "ams": "eu", "iad": "us"}


class Platform:
    """A node in each region, and the regions' half of an edge in `fra`."""

    def __init__(self, nodes: dict[str, RunningNode], *, told: dict[str, str]) -> None:
        self.nodes = nodes
        members = [
            member(node, region=name, residency=told.get(name, ZONES[name]))
            for name, node in nodes.items()
        ]
        registry = FixedRegistry(members)
        state = ClusterState("fra")
        self.directory = Directory(registry, hello("edge"), state, region="fra", patience=PATIENCE)
        placer = CostPlacer(self.directory, state, {MODEL: b"toy"}, Random(1))
        policy = RecoveryPolicy(start_patience=0.1, patience=0.2, pause=0.01)
        self.region = RemoteRegion(self.directory.links, placer, policy)

    def computed(self, name: str) -> int:
        """Tokens that a node's engine ran."""
        return sum(self.nodes[name].gate.tokens)


@asynccontextmanager
async def platform(
    path: Path, *names: str, told: dict[str, str] | None = None
) -> AsyncGenerator[Platform]:
    """`told` are zones by name that the registry has wrong."""
    nodes = {name: RunningNode(name, path, zone=ZONES[name]) for name in names}
    for node in nodes.values():
        await node.listen()
    made = Platform(nodes, told=told or {})
    try:
        await until(lambda: len(made.directory.links()) == len(nodes))
        async with asyncio.timeout(60):
            await until(lambda: all(link.is_up for link in made.directory.links()))
        yield made
    finally:
        await made.directory.close()
        for node in nodes.values():
            await node.stop()


async def test_a_stream_goes_on_in_its_zone_and_ends_with_it(tmp_path: Path) -> None:
    async with platform(tmp_path, "fra", "ams", "iad") as p:
        for node in p.nodes.values():
            node.gate.hold_after(6)
        stream = await p.region.generate(submit(residency="eu"))
        ids, _ = await after_tokens(stream, 3)
        first = next(name for name in ("fra", "ams") if p.computed(name))
        await p.nodes[first].stop()
        second = next(name for name in ("fra", "ams") if name != first)
        ids, _ = await after_tokens(stream, 7, ids)  # more than the first one had made
        await p.nodes[second].stop()
        with pytest.raises(Unavailable, match="in the zone 'eu'"):
            await read(stream, ids)
        assert ids == greedy_oracle(len(ids))
        assert p.computed(second) > 0
        assert p.computed("iad") == 0


async def test_where_no_node_of_the_zone_is_there_the_error_says_so(tmp_path: Path) -> None:
    async with platform(tmp_path, "iad") as p:
        with pytest.raises(Unavailable, match="in the zone 'eu' can serve"):
            await p.region.generate(submit(residency="eu"))
        embed = Embed(
            stream=1, request_id="r", model=MODEL, texts=[[1]], pooling="mean", normalize=True,
            residency="eu",
        )  # fmt: skip
        with pytest.raises(Unavailable, match="in the zone 'eu' embeds"):
            await p.region.embed(embed)
        await read(await p.region.generate(submit(residency="us")))


async def test_a_model_that_the_zone_does_not_have_is_not_found(tmp_path: Path) -> None:
    async with platform(tmp_path, "fra", "iad") as p:
        with pytest.raises(ModelNotFound, match="no node in the zone 'eu' serves @cf/other"):
            await p.region.generate(submit(residency="eu", model="@cf/other"))


async def test_a_node_knows_its_own_zone_whatever_the_registry_says(tmp_path: Path) -> None:
    async with platform(tmp_path, "iad", told={"iad": "eu"}) as p:
        with pytest.raises(ResidencyUnmet, match="bound to the zone 'eu'; node iad is in 'us'"):
            await p.region.generate(submit(residency="eu"))
        assert p.computed("iad") == 0


async def test_what_one_node_took_is_taken_back_when_the_other_may_not(tmp_path: Path) -> None:
    async with platform(tmp_path, "fra", "iad") as p:
        links = {link.node: link for link in p.directory.links()}

        class Split:
            def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
                yield Route(decode=links["fra"], prefill=links["iad"], kv_address="unix:/nowhere")

        with pytest.raises(ResidencyUnmet):
            await RemoteRegion(p.directory.links, Split()).generate(submit(residency="eu"))
        assert links["fra"].num_streams == 0


async def test_a_link_sends_nothing_out_of_the_zone(tmp_path: Path) -> None:
    node = RunningNode("iad", tmp_path, zone="us")
    await node.listen()
    link = NodeLink("iad", node.address, hello("edge"), PATIENCE, zone="us")
    async with asyncio.timeout(60):
        await until(lambda: link.is_up)
    with pytest.raises(ResidencyUnmet):
        link.submit(submit(residency="eu"), print)
    assert link.num_streams == 0
    await link.close()
    await node.stop()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("eu", True), ("eu-west-1", True), ("", False), ("EU", False), ("eu\n", False),
     ("../eu", False), ("-eu", False), ("e" * 64, False)],
)  # fmt: skip
def test_names_of_zones(text: str, expected: bool) -> None:
    assert is_zone(text) is expected
