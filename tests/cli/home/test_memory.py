"""Several models within a memory budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry_cli.home.memory import (
    DEFAULT_KV_TOKENS,
    SMALLEST_KV_TOKENS,
    MemoryNeed,
    MemoryTooSmall,
    blocks_of,
    plan_blocks,
    size,
)

MIB = 1 << 20
SMALL = MemoryNeed(model="small", weights=100 * MIB, block=1 * MIB)
LARGE = MemoryNeed(model="large", weights=400 * MIB, block=4 * MIB)


def test_without_a_budget_every_model_gets_the_default() -> None:
    blocks = DEFAULT_KV_TOKENS // 64
    assert plan_blocks([SMALL, LARGE], memory=None, kv_tokens=None) == [blocks, blocks]


def test_kv_tokens_are_rounded_up_to_whole_blocks() -> None:
    assert plan_blocks([SMALL], memory=None, kv_tokens=65) == [2]


def test_what_is_left_is_shared_in_equal_parts() -> None:
    assert plan_blocks([SMALL, LARGE], memory=900 * MIB, kv_tokens=None) == [188, 53]


def test_a_budget_too_small_names_the_models_and_what_they_need() -> None:
    with pytest.raises(MemoryTooSmall) as caught:
        plan_blocks([SMALL, LARGE], memory=510 * MIB, kv_tokens=None)
    assert str(caught.value) == (
        "--memory 510 MiB is too small: small (100 MiB), large (400 MiB) and 512 tokens of KV "
        "each need 540 MiB."
    )
    with pytest.raises(MemoryTooSmall, match="8192 tokens of KV each need 228 MiB"):
        plan_blocks([SMALL], memory=200 * MIB, kv_tokens=8192)


@given(
    needs=st.lists(
        st.builds(
            MemoryNeed,
            model=st.just("m"),
            weights=st.integers(1, 1 << 40),
            block=st.integers(1, 1 << 30),
        ),
        min_size=1,
        max_size=8,
    ),
    memory=st.integers(1, 1 << 44),
    kv_tokens=st.none() | st.integers(1, 1 << 20),
)
def test_a_plan_never_exceeds_the_budget(
    needs: list[MemoryNeed], memory: int, kv_tokens: int | None
) -> None:
    try:
        plan = plan_blocks(needs, memory=memory, kv_tokens=kv_tokens)
    except MemoryTooSmall:
        return
    used = sum(need.weights + blocks * need.block for need, blocks in zip(needs, plan, strict=True))
    assert used <= memory
    assert all(blocks >= blocks_of(kv_tokens or SMALLEST_KV_TOKENS) for blocks in plan)


@pytest.mark.parametrize(
    ("count", "text"),
    [(5, "5 B"), (1536, "1.5 KiB"), (98_362_432, "93.8 MiB"), (3 << 30, "3 GiB")],
)
def test_sizes_as_people_write_them(count: int, text: str) -> None:
    assert size(count) == text


def test_what_is_free_decides_where_nobody_says() -> None:
    usual, context = blocks_of(DEFAULT_KV_TOKENS), blocks_of(65_536)
    long = MemoryNeed(model="long", weights=100 * MIB, block=1 * MIB, context=65_536)

    def plan(*needs: MemoryNeed, free: int) -> list[int]:
        return plan_blocks(needs, memory=None, kv_tokens=None, free=free)

    assert plan(SMALL, free=1 << 40) == [usual]
    assert plan(long, free=1 << 40) == [context]
    assert plan(long, free=700 * MIB) == [300]  # half of what the weights leave
    assert plan(SMALL, long, free=1000 * MIB) == [192, 200]  # a quarter of it each
    assert plan(long, free=10 * MIB) == [blocks_of(SMALLEST_KV_TOKENS)]
    assert plan_blocks([long], memory=None, kv_tokens=64, free=1 << 40) == [1]
