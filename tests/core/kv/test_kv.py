from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.core.kv.sane_pools import check_pool
from tests.core.toy_oracle import expected, request, run

from skerry_core.blocks import BlockPool, chain_digests, root_digest
from skerry_core.config import BLOCK_SIZE, EngineConfig, KVDtype
from skerry_core.engine.engine import Engine
from skerry_core.kv.canonical import (
    KVRangeError,
    adopt_block,
    convert,
    export_blocks,
    from_float32,
    kv_dtype,
    to_float32,
)
from skerry_core.request import KVBlock
from skerry_core.runners.toy import ToyRunner

DTYPES: list[KVDtype] = ["float16", "bfloat16", "float32"]
DIGEST = bytes(16)


def make_engine(dtype: KVDtype = "float16", num_blocks: int = 16) -> Engine:
    runner = ToyRunner(num_blocks=num_blocks, dtype=dtype)
    return Engine(runner, EngineConfig(), model_key=b"toy")


# --- dtypes --------------------------------------------------------------------------------------


@given(hnp.arrays(np.uint16, 16))
def test_bfloat16_is_the_upper_half_of_float32(bits: np.ndarray) -> None:
    values = to_float32(bits, "bfloat16")
    assert (values.view(np.uint32) == bits.astype(np.uint32) << 16).all()
    finite = np.isfinite(values)
    assert (from_float32(values[finite], "bfloat16") == bits[finite]).all()


@given(hnp.arrays(np.float32, 8, elements=st.floats(-(2.0**126), 2.0**126, width=32)))
def test_bfloat16_rounds_to_the_nearest_and_ties_to_even(values: np.ndarray) -> None:
    rounded = from_float32(values, "bfloat16").astype(np.uint16)
    result = to_float32(rounded, "bfloat16").astype(np.float64)
    for neighbour in (rounded - 1, rounded + 1):
        other = to_float32(neighbour.astype(np.uint16), "bfloat16").astype(np.float64)
        here, there = np.abs(result - values), np.abs(other - values)
        usable = np.isfinite(other) & (np.sign(other) * np.sign(result) >= 0)
        assert (here <= there)[usable].all()
        tie = usable & (here == there) & (result != other)
        assert (rounded[tie] % 2 == 0).all()


@given(hnp.arrays(np.float16, 8, elements=st.floats(-65504, 65504, width=16)))
def test_float16_survives_a_journey_through_float32(values: np.ndarray) -> None:
    there = convert(values, "float16", "float32")
    assert (convert(there, "float32", "float16") == values).all()


@pytest.mark.parametrize("value", [65520.0, -1e6, np.inf, np.nan])
def test_a_value_beyond_float16_is_refused_not_clipped(value: float) -> None:
    block = np.array([0.0, value], np.float32)
    with pytest.raises(KVRangeError, match="beyond the range of float16"):
        convert(block, "float32", "float16")


def test_the_largest_float16_is_not_refused() -> None:
    block = np.array([65504.0, 65519.0], np.float32)
    assert convert(block, "float32", "float16").tolist() == [65504.0, 65504.0]


@pytest.mark.parametrize("value", [np.finfo(np.float32).max, np.inf, np.nan])
def test_bfloat16_refuses_what_would_not_be_finite(value: float) -> None:
    with pytest.raises(KVRangeError, match="bfloat16"):
        from_float32(np.array([value], np.float32), "bfloat16")


# --- transfer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_a_transferred_block_is_a_cache_hit(source: KVDtype, target: KVDtype) -> None:
    one = request(prompt_length=200, max_tokens=20, cache_key=b"tenant")
    sender, receiver = make_engine(source), make_engine(target)
    sender.add(one.sequence())
    run(sender)
    tokens = np.array(one.prompt_ids, np.int32)
    digests = chain_digests(root_digest(b"toy", b"tenant"), tokens, b"tenant")
    blocks = sender.pool.acquire(digests)
    assert len(blocks) == 3
    for block, digest in zip(blocks, digests, strict=True):
        own = sender.runner.export_block(block)
        data = convert(own, sender.runner.kv_format.dtype, "float32")
        assert data.shape == sender.runner.kv_format.shape
        arrived = KVBlock(digest, BLOCK_SIZE, data, "float32")
        assert adopt_block(receiver.runner, receiver.pool, arrived)
    assert receiver.pool.num_used == 0
    receiver.add(one.sequence())
    answer = run(receiver)["r"]
    assert answer == expected(one)
    assert answer.usage is not None
    assert answer.usage.cached_tokens == 192


@pytest.mark.parametrize("place", [(0, 0, 0, 5, 0), (1, 1, 0, 63, 1), (0, 1, 0, 0, 1)])
def test_a_torn_transfer_changes_the_answer(place: tuple[int, ...]) -> None:
    one = request(prompt_length=65, max_tokens=5)
    engine = make_engine()
    engine.add(one.sequence())
    run(engine)
    data = engine.runner.export_block(0)
    data[place] += np.float16(1)  # type: ignore[operator]
    engine.runner.admit_block(0, data)
    engine.add(one.sequence())
    assert run(engine)["r"] != expected(one)


def test_a_block_that_is_there_or_has_no_room_is_not_adopted() -> None:
    runner = ToyRunner(num_blocks=1)
    pool = BlockPool(1)
    (block,) = export_blocks(runner, [0], [DIGEST])
    assert adopt_block(runner, pool, block)
    assert not adopt_block(runner, pool, block)
    pool.allocate(1)
    assert not adopt_block(runner, pool, block)


def test_a_refused_block_leaves_the_pool_as_it_was() -> None:
    runner = ToyRunner(num_blocks=2)
    pool = BlockPool(2)
    wrong = KVBlock(DIGEST, BLOCK_SIZE, np.zeros((3, 2), np.float16), "float16")
    with pytest.raises(ValueError, match=r"expected a block of float16\(2, 2, 1, 64, 2\)"):
        adopt_block(runner, pool, wrong)
    huge = np.full(runner.kv_format.shape, 1e9, np.float32)
    with pytest.raises(KVRangeError):
        adopt_block(runner, pool, KVBlock(DIGEST, BLOCK_SIZE, huge, "float32"))
    assert (pool.num_used, pool.match([DIGEST])) == (0, 0)
    check_pool(pool)


def test_dtypes_are_little_endian() -> None:
    assert [kv_dtype(dtype).str for dtype in DTYPES] == ["<f2", "<u2", "<f4"]
