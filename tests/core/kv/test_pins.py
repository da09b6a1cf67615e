"""Pinned blocks outlast unpinned ones, for their time, while there is room, within bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from bench.subjects.requests import Request, SamplingParams
from tests.clock import Clock
from tests.core.kv.sane_pools import check_pool

from skerry_core.blocks import BlockPool
from skerry_core.config import BLOCK_SIZE, EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.pins import PinChange, Pins
from skerry_core.runners.toy import ToyRunner

NAMES = [bytes([i]) * 16 for i in range(40)]
OWNER = b"tenant"


def cached(pool: BlockPool, names: Sequence[bytes]) -> None:
    """Have idle blocks of these names."""
    blocks = pool.allocate(len(names))
    for block, name in zip(blocks, names, strict=True):
        pool.seal(block, name)
    pool.release(blocks)


def pin(pool: BlockPool, names: Sequence[bytes], until: float, owner: bytes = OWNER) -> PinChange:
    return pool.pin(names, [until] * len(names), owner)


def test_pinned_blocks_are_forgotten_last() -> None:
    pool = BlockPool(16)
    cached(pool, NAMES[:2])
    assert pin(pool, NAMES[:2], 10.0) == PinChange(2, (0, 1), ())
    cached(pool, NAMES[2:16])  # used later than the pinned ones
    pool.allocate(14)
    assert pool.match(NAMES[:2]) == 2
    assert (pool.num_idle, pool.num_pinned) == (2, 2)
    pool.allocate(1)  # there is no other room
    assert pool.num_pinned == 1
    check_pool(pool)


def test_after_its_time_a_block_is_as_any_other() -> None:
    pool = BlockPool(16)
    cached(pool, NAMES[:2])
    pin(pool, NAMES[:2], 10.0)
    pool.expire_pins(9.9)
    assert pool.num_pinned == 2
    pool.expire_pins(10.0)
    assert pool.num_pinned == 0
    assert pool.match(NAMES[:2]) == 2
    cached(pool, NAMES[2:18])
    assert pool.match(NAMES[:2]) == 0
    check_pool(pool)


def test_a_pinned_block_can_be_used_and_comes_back() -> None:
    pool = BlockPool(16)
    cached(pool, NAMES[:1])
    pin(pool, NAMES[:1], 10.0)
    blocks = pool.acquire(NAMES[:1])
    pool.expire_pins(10.0)  # in use meanwhile
    pool.release(blocks)
    check_pool(pool)
    blocks = pool.acquire(NAMES[:1])
    pin(pool, NAMES[:1], 20.0)  # in use
    pool.release(blocks)
    check_pool(pool)
    pool.allocate(15)
    assert pool.match(NAMES[:1]) == 1


def test_only_what_is_sealed_from_the_start_is_pinned() -> None:
    pool = BlockPool(32)
    cached(pool, [NAMES[0], NAMES[2]])
    assert pin(pool, NAMES[:3], 10.0) == PinChange(1, (0,), ())


def test_beyond_a_tenants_share_its_oldest_prompt_lapses_from_its_end() -> None:
    pool = BlockPool(32)
    cached(pool, NAMES[:32])
    assert pin(pool, NAMES[:16], 10.0).num_pinned == 8  # a quarter, of a prompt its beginning
    assert pin(pool, NAMES[:5], 20.0) == PinChange(5, (), ())  # prolonged
    change = pin(pool, NAMES[16:20], 10.0)
    assert (change.num_pinned, change.new, change.lapsed) == (4, (0, 1, 2, 3), (7, 6, 5, 4))
    assert pin(pool, NAMES[20:21], 10.0).lapsed == (3,)  # before those that were pinned later
    pool.expire_pins(10.0)
    assert pool.num_pinned == 3
    check_pool(pool)


def test_one_tenants_pins_never_end_anothers() -> None:
    pool = BlockPool(32)
    cached(pool, NAMES[:32])
    assert pin(pool, NAMES[:8], 10.0, b"one").num_pinned == 8
    assert pin(pool, NAMES[8:16], 10.0, b"two").num_pinned == 8
    assert pin(pool, NAMES[16:24], 10.0, b"three").num_pinned == 8
    assert pin(pool, NAMES[24:32], 10.0, b"four") == PinChange(0, (), ())  # the last quarter
    assert pin(pool, NAMES[:4], 20.0, b"four").num_pinned == 4  # pinned already: no further room
    pool.expire_pins(10.0)
    assert pool.num_pinned == 4
    assert pin(pool, NAMES[24:32], 30.0, b"four").lapsed == (3, 2, 1, 0)
    check_pool(pool)


@pytest.mark.parametrize(("share", "most"), [(0.5, 16), (1.0, 32), (0.0, 0)])
def test_the_share_is_the_operators(share: float, most: int) -> None:
    pool = BlockPool(32, pin_share=share)
    cached(pool, NAMES[:32])
    assert pin(pool, NAMES[:32], 10.0).num_pinned == most


def test_pinning_again_and_again_takes_no_memory() -> None:
    pins = Pins(64, 0.25)
    for number in range(10_000):
        pins.add([1], [float(number)], OWNER)
    assert len(pins._ends) <= 4 * 64
    assert pins.expire(9_998.0) == []
    assert pins.expire(9_999.0) == [1]
    assert not pins._of


@pytest.mark.parametrize("pin_seconds", [0.0, 60.0])
def test_a_requests_prompt_stays_while_others_come_and_go(pin_seconds: float) -> None:
    clock = Clock()
    engine = Engine(
        ToyRunner(num_blocks=32, vocab_size=257), EngineConfig(), model_key=b"toy", clock=clock
    )

    def cached_tokens(id: str, start: int, pin_seconds: float = 0.0) -> int:
        prompt = (np.arange(3 * BLOCK_SIZE + 1) * 7 + start) % 257
        sampling = SamplingParams(max_tokens=1)
        engine.add(
            Request(
                id=id, prompt_ids=tuple(prompt.tolist()), sampling=sampling,
                cache_key=OWNER,
                pins=((len(prompt), pin_seconds),) if pin_seconds else (),
            ).sequence())  # fmt: skip
        while True:
            for output in engine.step():
                if output.usage is not None:
                    return output.usage.cached_tokens

    assert cached_tokens("first", 1, pin_seconds) == 0
    for number in range(20):
        cached_tokens(f"other-{number}", 2 + number)
    assert cached_tokens("again", 1) == (3 * BLOCK_SIZE if pin_seconds else 0)
    clock.now = 61.0
    for number in range(20):
        cached_tokens(f"later-{number}", 30 + number)
    assert cached_tokens("after", 1) == 0
    assert engine.pool.num_pinned == 0
