"""The compiled index of prefixes against the plain one, at its limits too."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples
from tests.regions.routing.kernels import load_router_kernels
from tests.regions.routing.prefix_nodes import UNIVERSE, believed, delta, make, wanted

from skerry_regions.prefix_news import PrefixDelta, PrefixPublisher
from skerry_regions.routing.block_index import CachedPrefix, DirectoryLimits
from skerry_regions.routing.prefixes import PrefixDirectory


@pytest.mark.parametrize(
    "limits",
    [DirectoryLimits(max_node_digests=3), DirectoryLimits(max_digests=3)],
)
def test_beyond_its_limits_the_compiled_index_takes_no_more(
    limits: DirectoryLimits,
) -> None:
    directory = make("compiled", limits)
    directory.apply(delta(1, 0, 1))
    directory.apply(delta(2, 3, 4))
    assert list(believed(directory, "a")) == [UNIVERSE[0], UNIVERSE[1], UNIVERSE[3]]
    directory.apply(delta(3, evicted=(0, 1, 3)))
    directory.apply(delta(4, 5))
    assert list(believed(directory, "a")) == [UNIVERSE[5]]


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 2**32), nodes=st.integers(1, 200), blocks=st.integers(1, 300))
def test_the_compiled_index_is_the_plain_one_however_many_nodes_share_a_block(
    seed: int, nodes: int, blocks: int
) -> None:
    """One holder, lists that grow, and bitmaps; in both tiers, with evictions and expectations."""
    rng = random.Random(seed)
    every = [rng.randbytes(16) for _ in range(blocks)]
    plain, compiled = make("plain"), make("compiled")
    for _ in range(3 * nodes):
        name, seq = f"n{rng.randrange(nodes)}", rng.random()
        start = rng.randrange(blocks)
        some = every[start : start + rng.choice([1, 5, blocks])]
        for directory in (plain, compiled):
            slot = directory.slot(name)
            assert slot is not None
            if seq < 0.5:
                directory.index.tell(slot, some, "memory")
            elif seq < 0.7:
                directory.index.tell(slot, some, "file")
            elif seq < 0.9:
                directory.index.forget(slot, some)
            else:
                directory.index.clear(slot)
    for _ in range(5):
        start = rng.randrange(blocks)
        prompt = every[start : start + rng.randint(1, 20)]
        assert compiled.match_all(prompt) == plain.match_all(prompt)
    for node in range(nodes):
        assert compiled.num_digests(f"n{node}") == plain.num_digests(f"n{node}")
    assert [compiled.knows(block) for block in every] == [plain.knows(block) for block in every]


def test_moving_to_the_compiled_index_loses_nothing() -> None:
    directory = make("plain")
    sealed, filed = tuple(UNIVERSE[:3]), tuple(UNIVERSE[3:5])
    directory.apply(PrefixDelta(node="a", incarnation=1, seq=1, sealed=sealed, filed=filed))
    load_router_kernels()
    from skerry_regions.routing.fast.index import CompiledIndex

    directory.move_to(CompiledIndex(directory.limits))
    assert directory.match_all(UNIVERSE) == {"a": CachedPrefix(5, 2, 3)}
    directory.apply(delta(2, 5))
    assert directory.num_digests("a") == 6


def test_changes_that_nobody_asks_for_are_bounded() -> None:
    publisher, directory = PrefixPublisher("n", 1, max_changes=4), PrefixDirectory()
    publisher.sealed(UNIVERSE[:2])
    first = publisher.delta()
    assert first is not None
    directory.apply(first)
    publisher.sealed(UNIVERSE[2:8])
    publisher.evicted(UNIVERSE[:1])
    late = publisher.delta()
    assert late is not None
    directory.apply(late)
    assert wanted(directory) == ["n"]
    directory.apply(publisher.snapshot())
    assert wanted(directory) == []
    assert believed(directory, "n") == dict.fromkeys(UNIVERSE[1:8], "memory")
