"""The compiled ranking against plain Python, which says what it means; and candidates against all.

Worlds are random: roles, regions, zones, builds, caches in two tiers, expectations, bookings of
this edge and others, suspects, what is told of other regions, requests that go on elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.properties import examples
from tests.regions.routing.kernels import load_router_kernels

from skerry_regions.prefix_news import PrefixDelta
from skerry_regions.routing.block_index import CachedPrefix
from skerry_regions.routing.fast import kernels, trees
from skerry_regions.routing.placement import Demand, Placement, RouterConfig, explain
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


@pytest.fixture(autouse=True)
def _kernels() -> None:
    load_router_kernels()


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
        "suspect": rng.random() < 0.1,
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


def assert_same(plain: list[Placement], fast: list[Placement]) -> None:
    """The same prices to the last bits, and of the same nodes where prices differ."""
    assert [each.seconds for each in fast] == pytest.approx(
        [each.seconds for each in plain], rel=1e-12, abs=1e-12
    )
    seconds = [each.seconds for each in plain]
    for ours, theirs in zip(fast, plain, strict=True):
        assert ours.same_build == theirs.same_build
        if sum(abs(other - ours.seconds) < 1e-9 for other in seconds) == 1:
            if ours.path != theirs.path:  # equal prices beyond the last one kept
                assert ours.seconds == pytest.approx(seconds[-1])
                continue
            assert dict(ours.terms) == pytest.approx(dict(theirs.terms), rel=1e-12, abs=1e-12)
            assert ours.cached_tokens == theirs.cached_tokens
            assert (ours.fetch is None) == (theirs.fetch is None)
            assert (ours.is_exact, ours.is_mixed) == (theirs.is_exact, theirs.is_mixed)
    if plain:
        assert {k: v for k, v in fast[0].unpriced.items() if v} == {
            k: v for k, v in plain[0].unpriced.items() if v
        }


@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 40))
def test_a_compiled_price_is_what_python_says_term_by_term(seed: int, count: int) -> None:
    world = make(seed, count, RouterConfig())
    rng = world.rng
    for step in range(6):
        ask = demand(rng, world.chains)
        plain, fast = world.rank(ask, n0=CachedPrefix(9, 0, 9))
        assert_same(plain, fast)
        if plain:
            world.book(rng.choice(plain), ask, is_told=step % 2 == 0)
        world.now += rng.choice([0.0, 0.01, 3.0])
        changed = f"n{rng.randrange(count)}"
        match rng.randrange(4):
            case 0:
                world.put(node(rng, changed, observed_at=world.now))
            case 1:
                for view in world.views:
                    view.remove(changed)
            case 2:
                world.now += 1.0
                link = LinkSpeed(rtt=rng.random(), bandwidth=1e8)
                for view in world.views:
                    view.put_link("fra", "iad", link)
                # A row is written for the distance of then: bring all up to date.
                for name in list(world.views[0].nodes):
                    world.put(replace(world.views[0].nodes[name], observed_at=world.now))
            case _:
                pass


def test_released_bookings_are_counted_off() -> None:
    world = make(1, 1, RouterConfig(), draining=False, away=False, suspect=False, role="hybrid")
    ask = demand(Random(2), world.chains, digests=(), prompt_tokens=50_000, residency=None)
    ask = replace(ask, exclude=frozenset(), only_region=None, numeric_builds=frozenset())

    def queue() -> float:
        return world.fast.rank(world.views[1], ask, now=world.now)[0].terms["queue"]

    before, (only,) = queue(), world.rank(ask)[1]
    bookings = [world.fast.book(only, ask, now=world.now) for _ in range(2)]
    assert queue() > before + 2
    for booking in bookings:
        world.fast.release(booking)
        world.fast.release(booking)
    assert queue() == before
    world.fast.hear("m", "n0", "n0", 50_000, 0, at=world.now)
    assert queue() > before + 1
    world.put(replace(world.views[0].nodes["n0"], observed_at=world.now + 1))  # it reports
    world.now += 1
    assert queue() <= before


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
            away=False, suspect=False, takes_kv=True, cache_tokens=1_000_000, observed_at=100.0,
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
            numeric_build="b", kv_format="k", draining=False, away=False, suspect=False, load=load,
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
            draining=False, away=False, suspect=False, cache_tokens=None, observed_at=world.now,
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
            draining=False, away=False, suspect=False,
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


def test_the_key_of_the_kernels_cache_covers_all_that_is_compiled() -> None:
    folder = Path(kernels.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if "@compiled\n" in path.read_text()}
    assert files - {Path(str(module.__file__)).stem for module in kernels.SOURCES} == set()
    assert "sources" in files
