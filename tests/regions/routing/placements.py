"""Nodes, demands and a router over them, by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Any

from skerry_regions.prefix_news import PrefixDelta
from skerry_regions.routing.placement import (
    Demand,
    Placement,
    RouterConfig,
)
from skerry_regions.routing.prefixes import PrefixDirectory
from skerry_regions.routing.router import Router
from skerry_regions.speeds import LinkSpeed, NodeSpeed
from skerry_regions.view import NodeState, View

# One millisecond per prompt token, 10 ms per decode step, nothing else: sums fit in the head.
SPEED = NodeSpeed(
    base=0.010,
    per_token=0.001,
    per_pair=0.0,
    per_stream=0.0,
    per_context=0.0,
    chunk_tokens=100_000,
    gap_seconds=math.inf,
)
FAR = LinkSpeed(rtt=0.200, bandwidth=1e6)
DIGESTS = tuple(bytes([i]) * 16 for i in range(10))


def node(name: str, **changes: Any) -> NodeState:
    fields: dict[str, Any] = {
        "region": "here",
        "residency": "eu",
        "role": "hybrid",
        "model": "m",
        "numeric_build": "b1",
        "kv_format": "k",
        "kv_bytes_per_token": 1000.0,
        "speed": SPEED,
        **changes,
    }
    return NodeState(id=name, **fields)


def demand(**changes: Any) -> Demand:
    fields: dict[str, Any] = {
        "model": "m",
        "origin": "here",
        "prompt_tokens": 1000,
        "output_tokens": 0,
        **changes,
    }
    return Demand(**fields)


def view(*nodes: NodeState) -> View:
    return View(nodes, {("here", "there"): FAR})


@dataclass
class Setup:
    """A router with a directory that can be told who holds what."""

    directory: PrefixDirectory
    router: Router

    def hold(self, name: str, blocks: int, *, tier: str = "sealed") -> None:
        digests = {tier: DIGESTS[:blocks]}
        self.directory.apply(PrefixDelta(node=name, incarnation=1, seq=1, **digests))

    def rank(self, view: View, demand: Demand, now: float = 0.0) -> list[Placement]:
        return self.router.rank(view, demand, now=now)

    def best(self, view: View, demand: Demand, now: float = 0.0) -> Placement:
        return self.rank(view, demand, now)[0]


def make(seed: int = 0, **config: Any) -> Setup:
    directory = PrefixDirectory()
    return Setup(directory, Router(directory, Random(seed), RouterConfig(block_size=64, **config)))
