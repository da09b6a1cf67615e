"""Triton's other kernels against the plain Torch ones and the NumPy meaning of weight formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.paged_kv import DEVICE
from torch import Tensor

pytest.importorskip("triton")

from skerry_core.kernels import torch_ops, triton_blocks, triton_matmul, triton_ops
from skerry_core.kernels.quantized import (
    FORMATS,
    LARGEST,
    Matrix,
    NarrowWeights,
    QuantizedMatrix,
    narrowed,
    stacked,
    unpack,
)
from skerry_core.page_checksums import page_checksums
from skerry_core.tensors import FORMATS as ALL_FORMATS
from skerry_core.tensors import Bytes, dequantize, row_bytes
from skerry_core.tensors import Tensor as FileTensor

Linear = Callable[[Tensor, Matrix, Tensor | None], Tensor]
dtypes = st.sampled_from([torch.float32, torch.float16])


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def close(actual: Tensor, expected: Tensor) -> None:
    """Within a rounding or two of the dtype."""
    torch.testing.assert_close(actual, expected, rtol=2e-3, atol=1e-5)


# --- norms and activations -----------------------------------------------------------------------


@settings(max_examples=4, deadline=None)
@given(tokens=st.integers(1, 4), width=st.integers(1, 300), dtype=dtypes)
def test_norms_and_swiglu_are_those_of_torch(tokens: int, width: int, dtype: torch.dtype) -> None:
    x, branch = random(tokens, width, dtype=dtype), random(tokens, width, dtype=dtype, seed=1)
    weight = random(width, dtype=dtype, seed=2)
    close(triton_ops.rms_norm(x, weight, 1e-5), torch_ops.rms_norm(x, weight, 1e-5))
    told = triton_ops.add_rms_norm(x, branch, weight, 1e-5)
    normed, total = torch_ops.add_rms_norm(x, branch, weight, 1e-5)
    close(told[0], normed)
    assert torch.equal(told[1], total)
    both = torch.cat([x, branch], dim=1)
    close(triton_ops.swiglu(both), torch_ops.swiglu(both))


# --- rotation and the KV store -------------------------------------------------------------------


def rotary(width: int) -> tuple[Tensor, Tensor]:
    angles = torch.arange(200)[:, None] * (0.1 ** (torch.arange(width // 2) / width))
    return angles.cos().to(DEVICE), angles.sin().to(DEVICE)


def at(positions: np.ndarray[Any, Any], slots: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
    """i32 on the device."""
    first, second = (torch.from_numpy(each.astype(np.int32)) for each in (positions, slots))
    return first.to(DEVICE), second.to(DEVICE)


@settings(max_examples=4, deadline=None)
@given(
    tokens=st.integers(1, 4),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    width=st.sampled_from([16, 24]),
    dtype=dtypes,
    is_normed=st.booleans(),
)
def test_heads_are_normed_rotated_and_stored_in_one_launch(
    tokens: int, kv_heads: int, group: int, width: int, dtype: torch.dtype, is_normed: bool
) -> None:
    count = kv_heads * group
    heads = random(tokens, count + 2 * kv_heads, width, dtype=dtype)
    cos, sin = rotary(width)
    rng = np.random.default_rng(tokens)
    positions, slots = rng.integers(0, 200, tokens), rng.permutation(3 * 64)[:tokens]
    norms = (random(width, dtype=dtype, seed=1), random(width, dtype=dtype, seed=2))
    q, k, v = heads.clone().split([count, kv_heads, kv_heads], dim=1)
    if is_normed:
        q = torch_ops.rms_norm(q, norms[0], 1e-5)
        k = torch_ops.rms_norm(k, norms[1], 1e-5)
    q, k = (torch_ops.rotate(x, cos[positions], sin[positions]) for x in (q, k))

    kv = torch.zeros(2, 3, kv_heads, 64, width, dtype=dtype, device=DEVICE)
    where = at(positions, slots)
    q_norm, k_norm = norms if is_normed else (None, None)
    triton_ops.rotate_and_store(heads, kv, *where, cos, sin, q_norm=q_norm, k_norm=k_norm, eps=1e-5)
    close(heads[:, :count], q)
    close(kv[0, slots // 64, :, slots % 64], k)
    assert torch.equal(kv[1, slots // 64, :, slots % 64], v)
    kv[:, slots // 64, :, slots % 64] = 0
    assert not kv.any()  # nothing else was written


def eighths(dtype: torch.dtype, *shape: int) -> Tensor:
    """f32 values that a format of 8 bits holds, its largest in each row: so the scale is 1.

    Triton's interpreter loses a carry where it rounds to e4m3fn, so nothing may be left to round.
    """
    most = LARGEST[dtype]
    narrow = (most / 4 * random(*shape)).clamp(-most, most).to(dtype).float()
    narrow[..., 0] = most
    return narrow


in_both_formats = pytest.mark.parametrize("dtype", LARGEST, ids=str)


@in_both_formats
def test_keys_and_values_in_eight_bits_are_shares_of_the_largest_of_each_head(
    dtype: torch.dtype,
) -> None:
    heads, (cos, sin) = 0.5 * eighths(dtype, 3, 6, 16), rotary(16)
    wide = torch.zeros(2, 1, 2, 64, 16, device=DEVICE)
    narrow, scales = wide.to(dtype), torch.zeros(2, 1, 2, 64, device=DEVICE)
    where = at(np.zeros(3), np.array([9, 2, 63]))
    triton_ops.rotate_and_store(heads.clone(), wide, *where, cos, sin)
    triton_ops.rotate_and_store(heads.clone(), narrow, *where, cos, sin, scales=scales)
    torch.testing.assert_close(scales, wide.abs().amax(-1) / LARGEST[dtype], rtol=1e-6, atol=1e-6)
    assert torch.equal(narrow.float() * scales[..., None], wide)


# --- blocks --------------------------------------------------------------------------------------


def check_checksums(blocks: Tensor, gathered: Tensor) -> None:
    """Those of a gather, and of what has arrived, are NumPy's."""
    expected = page_checksums(blocks.cpu().view(torch.int16).numpy())
    for sums in (gathered, triton_blocks.checksums(blocks)):
        np.testing.assert_array_equal(sums.cpu().numpy().view(np.uint64), expected)


@settings(max_examples=3, deadline=None)
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
    sums = triton_blocks.gather(pool, index, told)
    expected = pool[:, :, blocks].movedim(2, 0)
    assert torch.equal(told, expected)
    check_checksums(told, sums)
    other = random(layers, 2, 6, kv_heads, 64, width, dtype=dtype, seed=1)
    kept = other.clone()
    triton_blocks.scatter(other, index, told)
    kept[:, :, blocks] = pool[:, :, blocks]
    assert torch.equal(other, kept)


@in_both_formats
def test_blocks_in_eight_bits_are_told_in_the_other_dtype(dtype: torch.dtype) -> None:
    pool = torch.zeros(2, 2, 3, 2, 64, 16, device=DEVICE).to(dtype)
    scales = torch.zeros(2, 2, 3, 2, 64, device=DEVICE)
    index = torch.tensor([2, 0], dtype=torch.int32, device=DEVICE)
    data = (2 * eighths(dtype, 2, 2, 2, 2, 64, 16)).half()
    triton_blocks.scatter(pool, index, data, scales)
    told = torch.empty_like(data)
    sums = triton_blocks.gather(pool, index, told, scales)
    assert torch.equal(told, data)
    check_checksums(told, sums)
    assert (scales[:, :, [2, 0]] == 2).all()


# --- products ------------------------------------------------------------------------------------

_SCALE_BYTES = {"Q4_K": slice(0, 4), "Q5_K": slice(0, 4), "Q6_K": slice(208, 210)}


def ggml_rows(format_: str, rows: int, columns: int, seed: int) -> Bytes:
    """Rows of a format, random; of those that `gguf` cannot write, random bits and sane scales."""
    rng = np.random.default_rng(seed)
    if format_ not in _SCALE_BYTES:
        values = rng.normal(size=(rows, columns)).astype(np.float32)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[format_])
    raw = rng.integers(0, 256, (rows, row_bytes(format_, columns)), np.uint8)
    scales = raw.reshape(rows, -1, ALL_FORMATS[format_].block_bytes)[..., _SCALE_BYTES[format_]]
    scales[:] = np.tile(np.array([0.01], np.float16).view(np.uint8), scales.shape[-1] // 2)
    return raw


def matrix_and_values(format_: str, rows: int, columns: int) -> tuple[QuantizedMatrix, Tensor]:
    """Planes of a matrix, and what `tensors.dequantize` says its values are."""
    raw = ggml_rows(format_, rows, columns, seed=rows)
    values = dequantize(FileTensor("w", format_, (rows, columns), raw.reshape(-1)))
    matrix = unpack(torch.from_numpy(raw).to(DEVICE), format_, columns)
    return matrix, torch.from_numpy(values).to(DEVICE)


@pytest.mark.parametrize("format_", FORMATS)
def test_planes_hold_the_weights_of_the_file(format_: str) -> None:
    matrix, values = matrix_and_values(format_, 5, 512)
    assert matrix.shape == (5, 512)
    atol = 0.0 if format_ in ("Q4_1", "Q8_0") else 1e-3 * float(values.abs().max())
    for each in (matrix, matrix.widened()):
        torch.testing.assert_close(each.dequantized(torch.float32), values, rtol=0, atol=atol)
    assert (matrix.widened().bits, matrix.widened().group) == (8, 16)


def test_matrices_of_mixed_formats_are_stacked() -> None:
    pairs = [matrix_and_values(format_, 3, 256) for format_ in ("Q4_0", "Q4_0", "Q6_K")]
    for part in (pairs[:2], pairs):
        matrix = stacked([quantized for quantized, _ in part])
        assert isinstance(matrix, QuantizedMatrix)
        assert matrix.bits == (4 if len(part) == 2 else 8)
        expected = torch.cat([quantized.dequantized(torch.float32) for quantized, _ in part])
        torch.testing.assert_close(matrix.dequantized(torch.float32), expected)
    plain = stacked([pairs[0][0], pairs[0][1]])
    assert isinstance(plain, Tensor)
    assert plain.shape == (6, 256)


@pytest.mark.parametrize("linear", [triton_matmul.linear, triton_matmul.invariant_linear])
@pytest.mark.parametrize("format_", FORMATS)
def test_products_by_quantised_weights(format_: str, linear: Linear) -> None:
    matrix, _ = matrix_and_values(format_, 37, 256)
    bias = random(37, seed=3)
    for tokens, dtype, rtol in ((1, torch.float16, 4e-3), (19, torch.float32, 1e-5)):
        x = random(tokens, 256, dtype=dtype)
        expected = x.float() @ matrix.dequantized(torch.float32).T + bias
        told = linear(x, matrix, bias.to(dtype)).float()
        torch.testing.assert_close(told, expected, rtol=0, atol=rtol * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("narrow", "bits", "group", "error"),
    [("int4", 4, 32, 1 / 15), ("int8", 8, 32, 1 / 250), ("fp8", 8, 96, 1 / 27)],
)
def test_floats_are_narrowed_and_multiplied_by(
    narrow: NarrowWeights, bits: int, group: int, error: float
) -> None:
    weight = random(37, 96, seed=1)
    weight[5] = 0
    matrix = narrowed(weight, narrow)
    assert (matrix.bits, matrix.group) == (bits, group)
    values = matrix.dequantized(torch.float32)
    assert (values - weight).abs().max() <= error * weight.abs().max()
    assert not values[5].any()
    x = random(3, 96)
    for linear in (triton_matmul.linear, triton_matmul.invariant_linear):
        torch.testing.assert_close(linear(x, matrix, None), x @ values.T, rtol=1e-4, atol=1e-4)
    both = stacked([matrix, matrix])
    assert isinstance(both, QuantizedMatrix)
    assert torch.equal(both.dequantized(torch.float32), torch.cat([values, values]))
    widened = matrix.widened().dequantized(torch.float32)
    assert (widened - weight).abs().max() <= 1.1 * error * weight.abs().max()


def test_many_rows_meet_fp8_weights_in_fp8() -> None:
    x, bias = random(65, 96, seed=2), random(37, seed=3)
    x[7] = 0
    matrix = narrowed(random(37, 96, seed=1), "fp8")
    rows = narrowed(x, "fp8").dequantized(torch.float32)
    told = triton_matmul.linear(x, matrix, bias)
    expected = rows @ matrix.dequantized(torch.float32).T + bias
    torch.testing.assert_close(told, expected, rtol=1e-4, atol=1e-4)
    assert not torch.equal(told, triton_matmul.invariant_linear(x, matrix, bias))


@settings(max_examples=3, deadline=None)
@given(
    tokens=st.integers(1, 70), inner=st.integers(1, 150), outputs=st.integers(1, 50), dtype=dtypes
)
def test_our_own_product_has_the_same_bits_at_any_size_of_the_batch(
    tokens: int, inner: int, outputs: int, dtype: torch.dtype
) -> None:
    x, weight = random(tokens, inner, dtype=dtype), random(outputs, inner, dtype=dtype, seed=1)
    product = triton_matmul.invariant_linear(x, weight, None)
    expected = x.float() @ weight.float().T
    torch.testing.assert_close(product.float(), expected, rtol=2e-3, atol=2e-3)
    alone = triton_matmul.invariant_linear(x[tokens // 2 :][:1], weight, None)
    assert torch.equal(alone[0], product[tokens // 2])
