"""Compiled products of quantised rows against their meaning in NumPy: the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.core.cpu import reference_kernels as reference
from tests.core.cpu.targets import assert_same_bits, on_each_target

from skerry_core.kernels.cpu import embedding_row, rowwise
from skerry_core.kernels.matmul import matmul, matmul_panels, matmul_tiles
from skerry_core.kernels.matmul.layout import BLOCK, PackedLayout, WeightFormat, pack
from skerry_core.kernels.matmul.matmul import matrix_record
from skerry_core.kernels.simd.memory import address, aligned_zeros
from skerry_core.kernels.simd.numba_math import kernel
from skerry_core.kernels.simd.targets import Target
from skerry_core.weights.tensors import FORMATS as BLOCKS
from skerry_core.weights.tensors import FileTensor, dequantize

FORMATS = list(WeightFormat)


def random_rows(
    rng: np.random.Generator, format_: WeightFormat, rows: int, columns: int
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Rows of GGML blocks; quants take every value, the lowest and highest included."""
    if not format_.is_quantized:
        dtype = np.float16 if format_ is WeightFormat.F16 else np.float32
        return rng.normal(size=(rows, columns)).astype(dtype).view(np.uint8)
    block_size, block_bytes, _ = BLOCKS[format_.name]
    blocks = rng.integers(0, 256, (rows, columns // block_size, block_bytes), dtype=np.uint8)
    with_scales(blocks, format_, rng)
    return blocks.reshape(rows, -1)


def with_scales(blocks: Any, format_: WeightFormat, rng: np.random.Generator) -> None:
    """Give GGML blocks u8[..., bytes] sane scales."""
    if format_ is WeightFormat.MXFP4:
        blocks[..., 0] = rng.integers(118, 128, blocks.shape[:-1])
        blocks[0, 0, 0] = 1  # a subnormal float32
        return
    if format_ is WeightFormat.UINT4:
        blocks[..., 2] = rng.integers(0, 17, blocks.shape[:-1])
    with_minimum = (WeightFormat.Q4_1, WeightFormat.Q5_1, WeightFormat.Q4_K, WeightFormat.Q5_K)
    count = 2 if format_ in with_minimum else 1
    scales = rng.normal(size=(*blocks.shape[:-1], count)) / 16
    scales[0, 0] = 1e-6  # a subnormal float16
    start = 208 if format_ is WeightFormat.Q6_K else 0  # at the end of a block there
    blocks[..., start : start + 2 * count] = scales.astype(np.float16).view(np.uint8)


def quantized(x: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Compiled quantisation of f32[T, K]: quants and headers."""
    x = np.ascontiguousarray(x)
    quants = np.zeros(x.shape, np.int8)
    headers = np.zeros((len(x), x.shape[1] // BLOCK, matmul_tiles.HEADER_BYTES // 4), np.int32)
    quantize_rows(address(x), x.size, address(quants), address(headers))
    return quants, headers


@kernel
def quantize_rows(x: Any, count: Any, quants: Any, headers: Any) -> None:
    rowwise.quantize(x, count, quants, headers)


def test_activations_are_quantized_as_in_numpy(rng: np.random.Generator) -> None:
    x = (rng.normal(size=(5, 4 * BLOCK)) * 10.0 ** rng.integers(-6, 6, (5, 1))).astype(np.float32)
    x[0, :BLOCK] = 0.0
    x[1, :BLOCK] = 1e-32
    x[2, :BLOCK] = np.arange(BLOCK) - 15.5  # ties
    quants, headers = quantized(x)
    wanted, scales = reference.quantize(x)
    np.testing.assert_array_equal(quants, wanted)
    assert_same_bits(headers[..., 0].view(np.float32), scales)
    sums = wanted.reshape(5, -1, BLOCK).sum(axis=-1, dtype=np.int32)
    assert_same_bits(headers[..., 1].view(np.float32), scales * sums.astype(np.float32))
    halves = wanted.reshape(5, -1, BLOCK)[..., :16].sum(axis=-1, dtype=np.int32)
    np.testing.assert_array_equal(headers[..., 2], -32 * halves)
    np.testing.assert_array_equal(headers[..., 3], -128 * sums)


@on_each_target
@pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize(
    ("rows", "columns", "tokens"),
    [(1, 32, 1), (8, 32, 2), (17, 96, 3), (40, 64, 5), (16, 576, 8), (33, 160, 27)],
)
def test_matmul(
    target: Target,
    format_: WeightFormat,
    rows: int,
    columns: int,
    tokens: int,
    rng: np.random.Generator,
) -> None:
    columns *= format_.blocks_per_scales
    raw = random_rows(rng, format_, rows, columns)
    x = rng.normal(size=(tokens, columns)).astype(np.float32)
    assert_same_bits(multiply(target, raw, format_, x)[:, :rows], reference.matmul(raw, format_, x))


@on_each_target
@pytest.mark.parametrize(
    "format_",
    [
        WeightFormat.Q4_1,
        WeightFormat.Q8_0,
        WeightFormat.MXFP4,
        WeightFormat.Q5_1,
        WeightFormat.Q4_K,
        WeightFormat.Q6_K,
    ],
    ids=lambda f: f.name,
)
def test_matmul_in_several_panels(
    target: Target, format_: WeightFormat, rng: np.random.Generator
) -> None:
    """The last panel is not full, some tokens are left over, and a group of rows too."""
    columns = (matmul_panels.PANEL_BLOCKS + (8 if format_.has_super_blocks else 3)) * BLOCK
    raw = random_rows(rng, format_, 41, columns)
    x = rng.normal(size=(25, columns)).astype(np.float32)
    assert_same_bits(multiply(target, raw, format_, x)[:, :41], reference.matmul(raw, format_, x))


def multiply(target: Target, raw: Any, format_: WeightFormat, x: Any) -> Any:
    """Compiled product f32[T, padded rows]."""
    layout = PackedLayout(format_, len(raw), x.shape[1], target.rows)
    packed = aligned_zeros((layout.num_groups, layout.group_bytes), np.uint8)
    packed[:] = pack(raw, layout)
    record = matrix_record(layout, address(packed))
    out = aligned_zeros((len(x), layout.num_groups * target.rows), np.float32)
    quants, headers = quantized(x)
    operand = quants if format_.is_quantized else x
    matmul.matmul(
        target,
        address(record),
        0,
        layout.num_groups,
        address(operand),
        operand.strides[0],
        address(headers),
        headers.strides[0],
        address(out),
        out.strides[0],
        len(x),
    )
    return out


@on_each_target
@pytest.mark.parametrize("format_", [f for f in FORMATS if f.is_quantized], ids=lambda f: f.name)
def test_matmul_at_the_edges_of_its_integers(target: Target, format_: WeightFormat) -> None:
    """All quants and all activations at their extremes: no sum of products overflows."""
    for byte in (0x00, 0xFF, 0x80, 0x7F):
        for sign in (-1.0, 1.0):
            columns = 64 * format_.blocks_per_scales
            raw = random_rows(np.random.default_rng(0), format_, 8, columns).reshape(8, 2, -1)
            raw[:] = byte
            with_scales(raw, format_, np.random.default_rng(0))
            x = np.full((2, columns), sign, np.float32)
            rows = raw.reshape(8, -1)
            assert_same_bits(
                multiply(target, rows, format_, x)[:, :8], reference.matmul(rows, format_, x)
            )


def test_pack_refuses_bytes_that_do_not_fit() -> None:
    layout = PackedLayout(WeightFormat.Q8_0, 4, 64, 8)
    with pytest.raises(ValueError, match=r"rows of 68 bytes, got an array of shape \(4, 67\)"):
        pack(np.zeros((4, 67), np.uint8), layout)
    with pytest.raises(ValueError, match="multiple of 32 columns, got 48"):
        PackedLayout(WeightFormat.Q4_1, 4, 48, 8)
    with pytest.raises(ValueError, match="multiple of 256 columns, got 320"):
        PackedLayout(WeightFormat.Q6_K, 4, 320, 8)


@on_each_target
@pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.name)
def test_embedding_of_a_packed_row(
    target: Target, format_: WeightFormat, rng: np.random.Generator
) -> None:
    columns = 64 * format_.blocks_per_scales
    raw = random_rows(rng, format_, 19, columns)
    layout = PackedLayout(format_, 19, columns, target.rows)
    packed = np.ascontiguousarray(pack(raw, layout))
    record = matrix_record(layout, address(packed))
    whole = dequantize(FileTensor(format_.name, (19, columns), raw.reshape(-1)))
    for token in (0, 7, 18):
        out = np.zeros(columns, np.float32)
        embedding_row.embed(target, address(record), token, out)
        np.testing.assert_allclose(out, whole[token], rtol=1e-6, atol=1e-6)
