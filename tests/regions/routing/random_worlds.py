"""Nodes, prefixes and demands at random, for a router and for the compiled ranking."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from skerry_regions.prefix_news import PrefixDelta
from skerry_regions.routing.block_index import CachedPrefix
from skerry_regions.routing.placement import Demand, Placement, RouterConfig
from skerry_regions.routing.prefixes import PrefixDirectory
from skerry_regions.routing.router import Router
from skerry_regions.speeds import LinkSpeed, NodeSpeed
from skerry_regions.view import NodeLoad, NodeState, View

SPEED = NodeSpeed(
    base=0.01,
    per_token=1 / 8000,
    per_pair=1 / 8000 / 65_536,
    per_stream=3e-4,
    per_context=4e-8,
    chunk_tokens=2048,
    gap_seconds=0.3,
)
REGIONS = ("fra", "iad", "nrt")
DEEP = 20  # blocks of the longest chain


@dataclass
class World:
    """The same nodes for two routers; `nodes` may be changed through `put` alone."""

    rng: Random
    plain: Router
    fast: Router
    views: tuple[View, View]
    chains: list[tuple[bytes, ...]]
    now: float = 100.0

    def put(self, *nodes: NodeState) -> None:
        for view in self.views:
            view.put(*nodes)

    def rank(self, demand: Demand, **told: CachedPrefix) -> tuple[list[Placement], list[Placement]]:
        plain = self.plain.rank(self.views[0], demand, now=self.now, told=told)
        return plain, self.fast.rank(self.views[1], demand, now=self.now, told=told)

    def book(self, placement: Placement, demand: Demand, *, is_told: bool) -> None:
        for router in (self.plain, self.fast):
            if is_told:
                router.hear(
                    "m", placement.prefill, placement.decode, demand.prompt_tokens,
                    placement.cached_tokens, at=self.now - 0.01,
                )  # fmt: skip
            else:
                router.book(placement, demand, now=self.now)


def node(rng: Random, name: str, **changes: Any) -> NodeState:
    streams = rng.choice([0, 0, rng.randrange(40)])
    tokens = rng.choice([0.0, rng.uniform(0, 20_000)])
    fields: dict[str, Any] = {
        "region": rng.choice(REGIONS),
        "residency": rng.choice(["eu", "us"]),
        "role": rng.choice(["prefill", "decode", "hybrid", "hybrid"]),
        "model": "m",
        "numeric_build": rng.choice(["b", "b", "b", "c"]),
        "batch_invariant": rng.random() < 0.8,
        "kv_format": rng.choice(["k", "k", "k", "l"]),
        "kv_bytes_per_token": rng.choice([1e3, 163_840.0]),
        "cache_tokens": rng.choice([None, 1000, 1_000_000]),
        "speed": SPEED.scaled(rng.choice([0.5, 1.0, 3.0])),
        "load": NodeLoad(
            prefill_tokens=tokens,
            prefill_pairs=tokens * rng.uniform(0, 8000),
            streams=streams,
            context_tokens=streams * rng.randrange(1, 4000),
            free_tokens=rng.choice([None, 500, 100_000]),
        ),
        "observed_at": 100.0 - rng.uniform(0, 2),
        "file_bandwidth": rng.choice([0.0, 1e8]),
        "takes_kv": rng.random() < 0.9,
        "handover_lag": rng.choice([0.0, 0.01]),
        "draining": rng.random() < 0.1,
        "away": rng.random() < 0.1,
        **changes,
    }
    return NodeState(id=name, **fields)


def make(seed: int, count: int, config: RouterConfig, **changes: Any) -> World:
    rng = Random(seed)
    chains = [tuple(rng.randbytes(16) for _ in range(DEEP)) for _ in range(3)]
    nodes = [node(rng, f"n{i}", **changes) for i in range(count)]
    links = {
        (a, b): LinkSpeed(rtt=rng.uniform(0.001, 0.2), bandwidth=rng.choice([1e7, 1e9]))
        for i, a in enumerate(REGIONS) for b in REGIONS[i:]
    }  # fmt: skip
    directories = PrefixDirectory(), PrefixDirectory()
    routers = [Router(directory, Random(seed), config) for directory in directories]
    routers[1].use_index()
    for each in nodes:
        held = [
            (chain[: rng.randrange(DEEP + 1)], rng.randrange(DEEP + 1))
            for chain in chains
            if rng.random() < 0.7
        ]
        sealed = tuple(block for chain, kept in held for block in chain[:kept])
        filed = tuple(block for chain, kept in held for block in chain[kept:])
        for directory in directories:
            directory.apply(
                PrefixDelta(node=each.id, incarnation=1, seq=1, sealed=sealed, filed=filed)
            )
    views = View(nodes, links), View(nodes, links)
    return World(rng, routers[0], routers[1], views, chains)


def demand(rng: Random, chains: list[tuple[bytes, ...]], **changes: Any) -> Demand:
    digests = rng.choice(chains)[: rng.randrange(DEEP + 1)]
    digests += tuple(rng.randbytes(16) for _ in range(rng.choice([0, 5])))
    fields: dict[str, Any] = {
        "model": "m",
        "origin": "fra",
        "prompt_tokens": max(64 * len(digests) + rng.randrange(64), 1),
        "digests": digests,
        "output_tokens": rng.choice([1.0, 256.0]),
        "residency": rng.choice([None, None, "eu", "nowhere"]),
        "affinity": rng.choice([b"", rng.randbytes(8)]),
        "exclude": frozenset(f"n{rng.randrange(40)}" for _ in range(rng.choice([0, 0, 3]))),
        "numeric_builds": rng.choice([frozenset(), {"b"}, {"b", "c"}, {"unheard"}]),
        "mixed_builds": rng.random() < 0.3,
        "only_region": rng.choice([None, None, None, "fra"]),
        "any_role": rng.random() < 0.2,
        **changes,
    }
    return Demand(**fields)
