"""Candidates against all nodes, at random: walks over trees, holders, bounds."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from msgspec.structs import replace
from tests.regions.routing.kernels import load_router_kernels
from tests.regions.routing.random_worlds import DEEP, SPEED, demand, make, node

from skerry_regions.prefix_news import PrefixDelta
from skerry_regions.routing.fast import trees
from skerry_regions.routing.placement import Demand, RouterConfig, explain
from skerry_regions.view import NodeLoad


@pytest.fixture(autouse=True)
def _kernels() -> None:
    load_router_kernels()


@pytest.mark.parametrize("roles", [("hybrid",), ("prefill", "decode", "hybrid")])
@pytest.mark.parametrize("load", [0, 4000, 20_000])
def test_a_few_candidates_are_nearly_as_good_as_all(roles: tuple[str, ...], load: int) -> None:
    """Of 600 nodes: the mean price of a decision is within 1 %."""
    rng, everyone = Random(load), RouterConfig(candidates="all")
    worlds = []
    for config in (RouterConfig(), everyone):
        world = make(load, 0, config)
        worlds.append(world)
    chains = worlds[0].chains
    for i in range(600):
        speed = SPEED.scaled(rng.choice([0.8, 1.0, 1.3]))
        tokens = max(0.0, rng.expovariate(1 / load) - load * 0.3) if load else 0.0
        streams = rng.randrange(24)
        state = node(
            rng, f"n{i}", region="fra", residency="eu", role=rng.choice(roles), speed=speed,
            numeric_build="b", kv_format="k", kv_bytes_per_token=163_840.0, draining=False,
            away=False, takes_kv=True, cache_tokens=1_000_000, observed_at=100.0,
            load=NodeLoad(
                prefill_tokens=tokens, prefill_pairs=tokens * rng.uniform(0, 8000),
                streams=streams, context_tokens=streams * rng.randrange(500, 12_000),
            ),
        )  # fmt: skip
        shares = (1.0, 0.05, 0.2)
        sealed = tuple(
            block
            for chain, share in zip(chains, shares, strict=True)
            if rng.random() < share
            for block in chain[: rng.choice([DEEP, rng.randrange(1, DEEP + 1)])]
        )
        for world in worlds:
            for view in world.views:
                view.put(state)
            world.fast._directory.apply(
                PrefixDelta(node=state.id, incarnation=1, seq=1, sealed=sealed)
            )
    losses = []
    for _ in range(60):
        chain = rng.choice(chains)
        digests = chain[: rng.randrange(1, DEEP + 1)] + tuple(
            rng.randbytes(16) for _ in range(rng.randrange(40))
        )
        ask = Demand(model="m", origin="fra", prompt_tokens=64 * len(digests) + 9, digests=digests)
        few, every = (world.fast.rank(world.views[1], ask, now=100.05)[0] for world in worlds)
        assert every.unpriced["index"] == 0
        assert few.unpriced["index"] >= 450
        assert "unpriced-index=" in explain([few])
        losses.append(few.seconds / every.seconds - 1)
    assert min(losses) > -1e-9
    assert sum(losses) / len(losses) < 0.01


def test_a_walk_over_a_tree_is_in_the_order_of_its_keys() -> None:
    """Against a sort, with equal keys and absent ones, after changes."""
    rng, slots = Random(5), 256
    tree, keys, nodes = np.full(2 * slots, np.inf), np.zeros(2048), np.zeros(2048, np.int64)
    for _ in range(2000):
        trees.set_key(tree, rng.randrange(slots), rng.choice([np.inf, rng.random(), 0.5]))
    wanted = sorted(key for key in tree[slots:].tolist() if key < np.inf)
    found, slot = [], 0
    length = trees.push(keys, nodes, 0, tree[1], 1)
    while slot >= 0:
        slot, length = trees.next_least(tree, keys, nodes, length)
        found.append(slot)
    assert found.pop() == -1
    assert len(set(found)) == len(found)
    assert [tree[slots + slot] for slot in found] == wanted
    assert 100 < len(wanted) < slots


def test_the_holder_that_is_cheapest_is_found_among_hundreds_at_any_depth() -> None:
    """Of 2,000 nodes, half of which hold a prefix to some depth: the idle one among busy ones."""
    world = make(4, 0, RouterConfig())
    chain, rng = world.chains[0], world.rng
    for i in range(2000):
        load = NodeLoad(prefill_tokens=40_000.0, prefill_pairs=1e8, streams=20, context_tokens=9)
        state = node(
            rng, f"n{i:04}", region="fra", residency="eu", role="hybrid", speed=SPEED,
            numeric_build="b", kv_format="k", draining=False, away=False, load=load,
            cache_tokens=None, observed_at=world.now, takes_kv=False,
        )  # fmt: skip
        world.put(state)
        held = chain[: rng.randrange(1, DEEP + 1)] if i % 2 else ()
        world.fast._directory.apply(
            PrefixDelta(node=state.id, incarnation=1, seq=1, sealed=tuple(held))
        )
    ask = Demand(model="m", origin="fra", prompt_tokens=64 * DEEP + 9, digests=chain)
    for number in (1, 999, 1999):
        busy = world.views[1].nodes[f"n{number:04}"]
        world.put(replace(busy, load=NodeLoad()))
        best = world.fast.rank(world.views[1], ask, now=world.now)[0]
        assert best.prefill == busy.id
        assert best.unpriced["index"] > 1900
        world.put(busy)


def test_holders_out_of_bounds_leave_room_for_those_that_may_take_it() -> None:
    """Of 60 that hold a prompt, 59 idle ones in another zone; one that drains is fetched from."""
    world = make(6, 0, RouterConfig())
    chain = world.chains[0]
    for i in range(200):
        state = node(
            world.rng, f"n{i:03}", region="fra", residency="eu" if i >= 59 else "us", role="hybrid",
            numeric_build="b", kv_format="k", kv_bytes_per_token=1e3, takes_kv=True, speed=SPEED,
            draining=False, away=False, cache_tokens=None, observed_at=world.now,
            load=NodeLoad(prefill_tokens=0.0 if i < 59 else 4000.0), file_bandwidth=0.0,
        )  # fmt: skip
        world.put(state)
        if i < 60:
            world.fast._directory.apply(
                PrefixDelta(node=state.id, incarnation=1, seq=1, sealed=chain)
            )
    ask = Demand(
        model="m", origin="fra", prompt_tokens=64 * DEEP + 9, digests=chain, residency="eu"
    )
    best = world.fast.rank(world.views[1], ask, now=world.now)[0]
    assert best.cached_tokens == 64 * DEEP
    assert "n059" in {best.prefill, best.fetch and best.fetch.source}
    world.put(replace(world.views[1].nodes["n059"], draining=True))
    best = world.fast.rank(world.views[1], ask, now=world.now)[0]
    assert best.prefill not in {f"n{i:03}" for i in range(60)}
    assert best.fetch is not None
    assert best.fetch.source == "n059"


def test_nodes_out_of_bounds_leave_candidates_all_the_same() -> None:
    """Of 500 nodes, the least busy ones all in another zone."""
    world = make(3, 0, RouterConfig())
    for i in range(500):
        state = node(
            world.rng, f"n{i:03}", residency="us" if i < 490 else "eu", role="hybrid",
            draining=False, away=False,
            load=NodeLoad(prefill_tokens=0.0 if i < 490 else 50_000.0),
        )  # fmt: skip
        world.put(state)
    ask = demand(
        world.rng, world.chains, residency="eu", exclude=frozenset({"n495"}), only_region=None
    )
    ranked = world.fast.rank(world.views[1], ask, now=world.now)
    assert {placement.decode for placement in ranked} <= {f"n{i}" for i in range(490, 500)}
    assert len(ranked) == 4
    assert ranked[0].unpriced["zone"] == 490
    assert ranked[0].unpriced["failed"] == 1
