"""The compiled ranking against plain Python, which says what it means; and candidates against all.

Worlds are random: roles, regions, zones, builds, caches in two tiers, expectations, bookings of
this edge and others, what is told of other regions, requests that go on elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.properties import examples
from tests.regions.routing.kernels import load_router_kernels
from tests.regions.routing.random_worlds import demand, make, node

from skerry_regions.routing.block_index import CachedPrefix
from skerry_regions.routing.fast import kernels
from skerry_regions.routing.placement import Placement, RouterConfig
from skerry_regions.speeds import LinkSpeed


@pytest.fixture(autouse=True)
def _kernels() -> None:
    load_router_kernels()


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
    world = make(1, 1, RouterConfig(), draining=False, away=False, role="hybrid")
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


def test_the_key_of_the_kernels_cache_covers_all_that_is_compiled() -> None:
    folder = Path(kernels.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if "@compiled\n" in path.read_text()}
    assert files - {Path(str(module.__file__)).stem for module in kernels.SOURCES} == set()
    assert "sources" in files
