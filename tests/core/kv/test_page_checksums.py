"""Checksums of KV blocks: their meaning in NumPy, and how a block with a wrong one is handled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.core.engine.test_handover import oracle, prefilled, request, run, toy_engine
from tests.core.kv.sane_pools import check_pool

from skerry_core.page_checksums import KVChecksumError, check_pages, page_checksums
from skerry_core.request import KVBlock

pages = hnp.arrays(np.uint16, st.tuples(st.integers(1, 3), st.integers(1, 5), st.just(8)))


def weight(index: int) -> int:
    x = (2 * index + 1) * 0x9E3779B1 % 2**32
    return (x ^ (x >> 16 << 1)) * 0x85EBCA6B % 2**32


@given(pages)
def test_a_checksum_is_a_weighted_sum_of_words(blocks: np.ndarray) -> None:
    told = page_checksums(blocks)
    assert told.dtype == np.uint64
    for block, checksum in zip(blocks, told.tolist(), strict=True):
        words = block.reshape(-1).view("<u4").tolist()
        expected = sum(weight(index) * word for index, word in enumerate(words))
        assert checksum == (len(words) + expected) % 2**64


def test_weights_are_odd_and_no_two_the_same() -> None:
    weights = [weight(index) for index in range(50_000)]
    assert all(each % 2 for each in weights)
    assert len(set(weights)) == len(weights)


@given(pages, st.data())
def test_a_flipped_bit_is_found(blocks: np.ndarray, data: st.DataObject) -> None:
    told = page_checksums(blocks)
    check_pages(told, page_checksums(blocks.copy()))
    spoilt = blocks.copy().reshape(-1)
    spoilt[data.draw(st.integers(0, spoilt.size - 1))] ^= 1 << data.draw(st.integers(0, 15))
    with pytest.raises(KVChecksumError, match=f"^1 of {len(blocks)} KV blocks were spoilt"):
        check_pages(told, page_checksums(spoilt.reshape(blocks.shape)))


@given(pages, st.data())
def test_words_that_changed_places_are_found(blocks: np.ndarray, data: st.DataObject) -> None:
    words = blocks[:1].reshape(1, -1).view("<u4")
    one, other = (data.draw(st.integers(0, words.size - 1)) for _ in range(2))
    swapped = words.copy()
    swapped[0, [one, other]] = words[0, [other, one]]
    is_same = bool((swapped == words).all())
    assert (page_checksums(swapped) == page_checksums(words)).all() == is_same


# --- in an engine --------------------------------------------------------------------------------


def on_host(block: KVBlock) -> np.ndarray:
    assert isinstance(block.data, np.ndarray)
    return block.data


def with_checksums(blocks: list[KVBlock]) -> list[KVBlock]:
    sums = page_checksums(np.stack([on_host(block) for block in blocks])).tolist()
    return [replace(block, checksum=told) for block, told in zip(blocks, sums, strict=True)]


def spoilt(block: KVBlock) -> KVBlock:
    """The block with one bit flipped, and the checksum that it had."""
    data = on_host(block).copy()
    data.reshape(-1).view(np.uint8)[77] ^= 4
    return replace(block, data=data)


@pytest.mark.parametrize("dtype", ["float16", "float32"], ids=["own dtype", "converted"])
def test_blocks_with_their_checksums_are_adopted(dtype: str) -> None:
    first, kv, _ = prefilled(200)
    engine, steps = toy_engine(dtype=dtype)
    engine.add(request(200, kv=tuple(with_checksums(kv)), output_ids=tuple(first)).sequence())
    tokens, _, _ = run(engine)
    assert first + tokens == oracle(request(200).prompt_ids, 20)
    assert steps == [1] * 19


@pytest.mark.parametrize("dtype", ["float16", "float32"], ids=["own dtype", "converted"])
@pytest.mark.parametrize("wrong", range(4))
def test_a_spoilt_block_is_computed_again(
    wrong: int, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The last of them is the open one at the prompt's end."""
    first, kv, _ = prefilled(200)
    kv = with_checksums(kv)
    kv[wrong] = spoilt(kv[wrong])
    engine, steps = toy_engine(dtype=dtype)
    engine.add(request(200, kv=tuple(kv), output_ids=tuple(first)).sequence())
    tokens, _, _ = run(engine)
    assert first + tokens == oracle(request(200).prompt_ids, 20)
    assert sum(steps) == 19 + 200 - wrong * 64
    assert "1 of 1 KV blocks were spoilt between devices" in caplog.text
    check_pool(engine.pool)


def test_others_run_on_beside_a_spoilt_open_block() -> None:
    first, kv, _ = prefilled(200)
    kv = with_checksums(kv)
    kv[-1] = spoilt(kv[-1])
    engine, steps = toy_engine()
    other = request(5, id="other")
    engine.add(other.sequence())
    outputs = engine.step()
    engine.add(request(200, kv=tuple(kv), output_ids=tuple(first)).sequence())
    outputs += run(engine)[2]
    told = {
        name: [
            token for output in outputs if output.request_id == name for token in output.token_ids
        ]
        for name in ("r", "other")
    }
    assert first + told["r"] == oracle(request(200).prompt_ids, 20)
    assert told["other"] == oracle(other.prompt_ids, 20)
    assert steps[1] == 1, "the step in which it was found spoilt ran without it"
    check_pool(engine.pool)
