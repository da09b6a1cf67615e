"""A real router and directory in front of nodes of the toy model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests.regions.toy_nodes import (
    MODEL,
    PATIENCE,
    PROMPT,
    RunningNode,
    hello,
    until,
)

from skerry_core.config import EngineConfig
from skerry_regions.digests import full_block_digests
from skerry_regions.region.cluster_state import ClusterState
from skerry_regions.region.cost_placer import CostPlacer
from skerry_regions.region.directory import Directory
from skerry_regions.region.recovery import RecoveryPolicy
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.region.speed_learning import SpeedBook
from skerry_regions.registry import LEASE_SECONDS, Member
from skerry_regions.routing.block_index import NOTHING_CACHED
from skerry_regions.speeds import StepSample
from skerry_regions.wire.link import Patience

DIGESTS = full_block_digests(b"toy", b"", PROMPT)


def member(node: RunningNode, **changes: Any) -> Member:
    kv_format = node.engine.runner.kv_format
    fields: dict[str, Any] = {
        "region": "here",
        "incarnation": node.node.incarnation,
        "address": str(node.address),
        "transfer_address": str(node.kv_address),
        "model": MODEL,
        "runner": "toy",
        "numeric_build": node.engine.runner.numeric_build,
        "batch_invariant": True,
        "kv_format": kv_format.dtype,
        "kv_bytes_per_token": kv_format.block_bytes / 64,
        "state": "ready",
        **changes,
    }
    return Member(id=node.node.id, kind="node", **fields)


class EqualSpeeds(SpeedBook):
    """Steps on a busy machine take what they take: here nobody learns from them."""

    def learn(self, node: str, sample: StepSample) -> None:
        pass


class FixedRegistry:
    """A registry whose members tests say."""

    def __init__(self, members: list[Member]) -> None:
        self.present = members

    def announce(self, member: Member, lease_seconds: float = LEASE_SECONDS) -> int:
        raise NotImplementedError

    def withdraw(self, member_id: str, incarnation: int) -> None:
        raise NotImplementedError

    def members(self) -> list[Member]:
        return self.present

    def close(self) -> None:
        pass


class Platform:
    """Nodes, and the regions' half of an edge before them."""

    def __init__(self, nodes: list[RunningNode], patience: Patience) -> None:
        self.nodes = {node.node.id: node for node in nodes}
        self.registry = FixedRegistry([member(node) for node in nodes])
        state = ClusterState("here")
        self.directory = Directory(self.registry, hello("edge"), state, patience=patience)
        self.placer = CostPlacer(self.directory, state, {MODEL: b"toy"}, Random(1))
        self.placer.observations.speeds = EqualSpeeds()
        policy = RecoveryPolicy(patience=1.0, pause=0.01)
        self.region = RemoteRegion(self.directory.links, self.placer, policy)

    def describe(self, **changes: dict[str, Any]) -> None:
        """What the registry says from now on of these nodes."""
        self.registry.present = [
            member(node, **changes.get(name, {})) for name, node in self.nodes.items()
        ]
        self.directory.apply(self.registry.present)

    @property
    def num_booked(self) -> int:
        return len(self.placer.router._bookings)

    def computed(self, name: str) -> int:
        """Tokens that a node's engine ran."""
        return self.nodes[name].num_computed

    def seems_idle(self) -> bool:
        """By the nodes' last reports."""
        nodes = self.placer.observations.view(MODEL).nodes.values()
        return not any(node.load.streams or node.load.prefill_tokens for node in nodes)

    def knows_prefix(self, name: str) -> bool:
        said = self.placer.observations.prefixes.match_all(DIGESTS, expected=False)
        return said.get(name, NOTHING_CACHED).blocks == len(DIGESTS)


@asynccontextmanager
async def platform(
    path: Path, *names: str, config: EngineConfig | None = None, patience: Patience = PATIENCE
) -> AsyncGenerator[Platform]:
    nodes = [RunningNode(name, path, config) for name in names]
    for each in nodes:
        await each.listen()
    made = Platform(nodes, patience)
    try:
        await until(lambda: len(made.directory.links()) == len(nodes))
        async with asyncio.timeout(60):
            await until(lambda: all(link.is_up for link in made.directory.links()))
        yield made
    finally:
        await made.directory.close()
        for each in made.nodes.values():
            await each.stop()
