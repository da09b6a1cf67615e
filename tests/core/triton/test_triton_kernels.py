"""Triton's norms, activations, rotation and copies of blocks, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.paged_kv import DEVICE
from tests.core.triton.triton_values import (
    EPS,
    check_close,
    dtypes,
    eighths,
    normed,
    random,
    rotary,
    rotated,
    wide,
)
from tests.properties import examples
from torch import Tensor

pytest.importorskip("triton")

from skerry_core.kernels.torch.quantized import LARGEST
from skerry_core.kernels.triton import blocks as triton_blocks
from skerry_core.kernels.triton import triton_ops
from skerry_core.kernels.triton.triton_ops import NewHeads
from skerry_core.page_checksums import page_checksums

pytestmark = [pytest.mark.gpu, pytest.mark.triton]

# --- norms and activations -----------------------------------------------------------------------


@settings(max_examples=examples(4), deadline=None)
@given(tokens=st.integers(1, 4), width=st.integers(1, 300), dtype=dtypes)
def test_norms_and_swiglu(tokens: int, width: int, dtype: torch.dtype) -> None:
    x, branch = random(tokens, width, dtype=dtype), random(tokens, width, dtype=dtype, seed=1)
    weight = random(width, dtype=dtype, seed=2)
    expected = normed(x, weight)
    check_close(triton_ops.rms_norm(x, weight, EPS), expected, np.abs(expected))
    told, total = triton_ops.add_rms_norm(x, branch, weight, EPS)
    assert torch.equal(total, x + branch)
    expected = normed(total, weight)
    check_close(told, expected, np.abs(expected))
    expected = wide(x) / (1 + np.exp(-wide(x))) * wide(branch)
    check_close(triton_ops.swiglu(torch.cat([x, branch], dim=1)), expected, np.abs(expected))


# --- rotation and the KV store -------------------------------------------------------------------


def at(positions: np.ndarray[Any, Any], slots: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
    """i32 on the device."""
    first, second = (torch.from_numpy(each.astype(np.int32)) for each in (positions, slots))
    return first.to(DEVICE), second.to(DEVICE)


@settings(max_examples=examples(4), deadline=None)
@given(
    tokens=st.integers(1, 4),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    width=st.sampled_from([16, 24]),
    dtype=dtypes,
    is_normed=st.booleans(),
    is_rotated=st.booleans(),
)
def test_heads_are_normed_rotated_and_stored_in_one_launch(
    tokens: int,
    kv_heads: int,
    group: int,
    width: int,
    dtype: torch.dtype,
    is_normed: bool,
    is_rotated: bool,
) -> None:
    count = kv_heads * group
    heads = random(tokens, count + 2 * kv_heads, width, dtype=dtype)
    cos, sin = rotary(width)
    rng = np.random.default_rng(tokens)
    positions, slots = rng.integers(0, 200, tokens), rng.permutation(3 * 64)[:tokens]
    norms = (random(width, dtype=dtype, seed=1), random(width, dtype=dtype, seed=2))
    parts = heads.clone().split([count, kv_heads, kv_heads], dim=1)

    kv = torch.zeros(2, 3, kv_heads, 64, width, dtype=dtype, device=DEVICE)
    where = at(positions, slots)
    q_norm, k_norm = norms if is_normed else (None, None)
    rope = (cos, sin) if is_rotated else None
    new = NewHeads(where[1], rope, q_norm, k_norm, EPS)
    triton_ops.rotate_and_store(heads, kv, where[0], new)
    keys = kv[0, slots // 64, :, slots % 64]
    for told, part, norm in zip((heads[:, :count], keys), parts, norms, strict=False):
        x = normed(part, norm) if is_normed else wide(part)
        turns = (wide(cos)[positions], wide(sin)[positions])
        check_close(told, *(rotated(x, *turns) if is_rotated else (x, np.abs(x))))
    assert torch.equal(kv[1, slots // 64, :, slots % 64], parts[2])
    kv[:, slots // 64, :, slots % 64] = 0
    assert not kv.any()  # nothing else was written


in_both_formats = pytest.mark.parametrize("dtype", LARGEST, ids=str)


@in_both_formats
@settings(max_examples=examples(2), deadline=None)
@given(
    tokens=st.integers(1, 3), kv_heads=st.integers(1, 3), group=st.integers(1, 4),
    width=st.sampled_from([16, 24]),
)  # fmt: skip
def test_keys_and_values_in_eight_bits_are_shares_of_the_largest_of_each_head(
    dtype: torch.dtype, tokens: int, kv_heads: int, group: int, width: int
) -> None:
    """At position 0, where nothing is turned."""
    heads = 0.5 * eighths(dtype, tokens, (group + 2) * kv_heads, width)
    kv = torch.zeros(2, 2, kv_heads, 64, width, device=DEVICE).to(dtype)
    scales = torch.zeros(2, 2, kv_heads, 64, device=DEVICE)
    slots = np.random.default_rng(tokens).permutation(128)[:tokens]
    where = at(np.zeros(tokens), slots)
    new = NewHeads(where[1], rotary(width))
    triton_ops.rotate_and_store(heads.clone(), kv, where[0], new, scales=scales)
    stored = kv.float() * scales[..., None]
    for kind, part in enumerate(heads[:, group * kv_heads :].split(kv_heads, dim=1)):
        assert torch.equal(stored[kind, slots // 64, :, slots % 64], part)
    assert (scales[:, slots // 64, :, slots % 64] == 0.5).all()
    scales[:, slots // 64, :, slots % 64] = 0
    assert not scales.any()  # nothing else was written


# --- blocks --------------------------------------------------------------------------------------


def where(blocks: Tensor) -> Tensor:
    return torch.from_numpy(triton_blocks.addresses_of(blocks)).to(DEVICE)


def check_checksums(blocks: Tensor, gathered: Tensor) -> None:
    """Those of a gather, and of what has arrived, are NumPy's."""
    expected = page_checksums(blocks.cpu().view(torch.int16).numpy())
    collected = torch.empty_like(blocks)
    sums_of_collected = triton_blocks.collect(where(blocks), collected)
    assert torch.equal(collected, blocks)
    for sums in (gathered, triton_blocks.checksums(blocks), sums_of_collected):
        np.testing.assert_array_equal(sums.cpu().numpy().view(np.uint64), expected)


@settings(max_examples=examples(3), deadline=None)
@given(
    layers=st.integers(1, 2),
    kv_heads=st.integers(1, 3),
    width=st.sampled_from([16, 24]),
    blocks=st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_blocks_leave_and_come_back(
    layers: int, kv_heads: int, width: int, blocks: list[int], dtype: torch.dtype
) -> None:
    pool = random(layers, 2, 6, kv_heads, 64, width, dtype=dtype)
    index = torch.tensor(blocks, dtype=torch.int32, device=DEVICE)
    told = torch.empty(len(blocks), layers, 2, kv_heads, 64, width, dtype=dtype, device=DEVICE)
    sums = triton_blocks.gather(pool, index, where(told), dtype)
    expected = pool[:, :, blocks].movedim(2, 0)
    assert torch.equal(told, expected)
    check_checksums(told, sums)
    other = random(layers, 2, 6, kv_heads, 64, width, dtype=dtype, seed=1)
    kept = other.clone()
    triton_blocks.scatter(other, index, where(told), dtype)
    kept[:, :, blocks] = pool[:, :, blocks]
    assert torch.equal(other, kept)


@in_both_formats
@settings(max_examples=examples(2), deadline=None)
@given(
    layers=st.integers(1, 2), kv_heads=st.integers(1, 3), width=st.sampled_from([16, 24]),
    blocks=st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True),
)  # fmt: skip
def test_blocks_in_eight_bits_are_told_in_the_other_dtype(
    dtype: torch.dtype, layers: int, kv_heads: int, width: int, blocks: list[int]
) -> None:
    pool = torch.zeros(layers, 2, 4, kv_heads, 64, width, device=DEVICE).to(dtype)
    scales = torch.zeros(pool.shape[:-1], device=DEVICE)
    index = torch.tensor(blocks, dtype=torch.int32, device=DEVICE)
    data = (2 * eighths(dtype, len(blocks), layers, 2, kv_heads, 64, width)).half()
    triton_blocks.scatter(pool, index, where(data), data.dtype, scales)
    told = torch.empty_like(data)
    sums = triton_blocks.gather(pool, index, where(told), told.dtype, scales)
    assert torch.equal(told, data)
    check_checksums(told, sums)
    assert (scales[:, :, blocks] == 2).all()
    scales[:, :, blocks] = 0
    assert not scales.any()  # nothing else was written
