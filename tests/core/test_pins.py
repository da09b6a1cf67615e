"""Pinned blocks outlast unpinned ones, for their time, while there is room, within bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from bench.subjects.requests import Request, SamplingParams

from skerry_core.blocks import BlockPool
from skerry_core.config import BLOCK_SIZE, EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.pins import Pins
from skerry_core.runners.toy import ToyRunner

NAMES = [bytes([i]) * 16 for i in range(40)]
OWNER = b"tenant"


def cached(pool: BlockPool, names: Sequence[bytes]) -> None:
    """Have idle blocks of these names."""
    blocks = pool.allocate(len(names))
    for block, name in zip(blocks, names, strict=True):
        pool.seal(block, name)
    pool.release(blocks)


def test_pinned_blocks_are_forgotten_last() -> None:
    pool = BlockPool(16)
    cached(pool, NAMES[:2])
    assert pool.pin(NAMES[:2], until=10.0, owner=OWNER) == 2
    cached(pool, NAMES[2:16])  # used later than the pinned ones
    pool.allocate(14)
    assert pool.match(NAMES[:2]) == 2
    assert (pool.num_idle, pool.num_pinned) == (2, 2)
    pool.allocate(1)  # there is no other room
    assert pool.num_pinned == 1
    pool.sanity_check()


def test_after_its_time_a_block_is_as_any_other() -> None:
    pool = BlockPool(16)
    cached(pool, NAMES[:2])
    pool.pin(NAMES[:2], until=10.0, owner=OWNER)
    pool.expire_pins(9.9)
    assert pool.num_pinned == 2
    pool.expire_pins(10.0)
    assert pool.num_pinned == 0
    assert pool.match(NAMES[:2]) == 2
    cached(pool, NAMES[2:18])
    assert pool.match(NAMES[:2]) == 0
    pool.sanity_check()


def test_a_pinned_block_can_be_used_and_comes_back() -> None:
    pool = BlockPool(16)
    cached(pool, NAMES[:1])
    pool.pin(NAMES[:1], until=10.0, owner=OWNER)
    blocks = pool.acquire(NAMES[:1])
    pool.expire_pins(10.0)  # in use meanwhile
    pool.release(blocks)
    pool.sanity_check()
    blocks = pool.acquire(NAMES[:1])
    pool.pin(NAMES[:1], until=20.0, owner=OWNER)  # in use
    pool.release(blocks)
    pool.sanity_check()
    pool.allocate(15)
    assert pool.match(NAMES[:1]) == 1


def test_only_what_is_sealed_from_the_start_is_pinned() -> None:
    pool = BlockPool(32)
    cached(pool, [NAMES[0], NAMES[2]])
    assert pool.pin(NAMES[:3], until=10.0, owner=OWNER) == 1


def test_bounds_of_one_tenant_and_of_all() -> None:
    pool = BlockPool(32)
    cached(pool, NAMES[:32])
    assert pool.pin(NAMES[:32], until=10.0, owner=OWNER) == 4
    assert pool.pin(NAMES[4:32], until=10.0, owner=b"second") == 4
    assert pool.pin(NAMES[8:32], until=10.0, owner=b"third") == 0
    assert pool.pin(NAMES[:4], until=20.0, owner=b"third") == 4  # pinned already: prolonged
    pool.expire_pins(10.0)
    assert pool.num_pinned == 4
    pool.expire_pins(20.0)
    assert pool.pin(NAMES[8:32], until=30.0, owner=OWNER) == 4


def test_pinning_again_and_again_takes_no_memory() -> None:
    pins = Pins(64)
    for number in range(10_000):
        pins.add(1, float(number), OWNER)
    assert len(pins._ends) <= 4 * 64
    assert pins.expired(9_998.0) == []
    assert pins.expired(9_999.0) == [1]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


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
                cache_key=OWNER, pin_seconds=pin_seconds,
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
