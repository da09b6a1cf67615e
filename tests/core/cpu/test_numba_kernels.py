"""Compiled kernels against their meaning in NumPy: the same bits on every target, in odd shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.core.cpu import reference_kernels as reference

from skerry_core.config import BLOCK_SIZE, ConfigError
from skerry_core.kernels.cpu import attention, embedding_row, rowwise
from skerry_core.kernels.matmul import matmul, matmul_panels, matmul_tiles
from skerry_core.kernels.matmul.layout import BLOCK, PackedLayout, WeightFormat, pack
from skerry_core.kernels.matmul.matmul import matrix_record
from skerry_core.kernels.simd import targets
from skerry_core.kernels.simd.memory import address, aligned_zeros
from skerry_core.kernels.simd.numba_math import kernel
from skerry_core.kernels.simd.targets import TARGETS, Target, choose_target
from skerry_core.weights.tensors import FORMATS as BLOCKS
from skerry_core.weights.tensors import FileTensor, dequantize

FORMATS = list(WeightFormat)


def supported_targets() -> Iterator[Any]:
    for name in TARGETS:
        try:
            yield pytest.param(choose_target(name), id=name)
        except ConfigError as error:
            yield pytest.param(None, id=name, marks=pytest.mark.skip(reason=str(error)))


on_each_target = pytest.mark.parametrize("target", list(supported_targets()))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def assert_same_bits(got: Any, wanted: Any) -> None:
    assert got.dtype == wanted.dtype == np.float32
    np.testing.assert_array_equal(
        np.ascontiguousarray(got).view(np.int32), np.ascontiguousarray(wanted).view(np.int32)
    )


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


@kernel
def norm_row(x: Any, weight: Any, eps: Any, out: Any) -> None:
    rowwise.rms_norm(x, weight, eps, out)


@pytest.mark.parametrize("columns", [32, 96, 576])
def test_rms_norm(columns: int, rng: np.random.Generator) -> None:
    x, weight = rng.normal(size=(2, columns)).astype(np.float32)
    out = np.zeros_like(x)
    norm_row(x, weight, np.float32(1e-5), out)
    assert_same_bits(out, reference.rms_norm(x, weight, 1e-5))


@kernel
def rotate(x: Any, cosines: Any, sines: Any) -> None:
    rowwise.rope(x, cosines, sines)


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
def test_rope(head_dim: int, rng: np.random.Generator) -> None:
    x = rng.normal(size=head_dim).astype(np.float32)
    cosines, sines = rng.uniform(-1, 1, (2, head_dim // 2)).astype(np.float32)
    wanted = reference.rope(x, cosines, sines)
    rotate(x, cosines, sines)
    assert_same_bits(x, wanted)


@kernel
def activate(gate: Any, up: Any) -> None:
    rowwise.swiglu(gate, up)


def test_swiglu(rng: np.random.Generator) -> None:
    gate, up = (rng.normal(size=(2, 500)) * 30).astype(np.float32)
    wanted = reference.swiglu(gate, up)
    activate(gate, up)
    assert_same_bits(gate, wanted)


@kernel
def store_half(target: Any, x: Any, count: Any, out: Any) -> None:
    rowwise.to_half(target, x, count, out)


@on_each_target
def test_values_are_stored_as_finite_halves(target: Target, rng: np.random.Generator) -> None:
    x = np.concatenate(
        [
            rng.normal(size=512) * 10.0 ** rng.integers(-9, 5, 512),
            [0.0, -0.0, 65504.0, 65519.0, 65520.0, 1e9, -1e9, np.inf, -np.inf],
            [2.0**-14, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 1 + 2.0**-11, 1 + 3 * 2.0**-11],
            [6.1e-5, -6.1e-5, 5.9e-8, 1e-40, -1e-40],
        ]
    )
    x = x[: len(x) // 16 * 16].astype(np.float32)
    out = np.zeros(len(x), np.float16)
    store_half(target, address(x), len(x), address(out))
    np.testing.assert_array_equal(out.view(np.uint16), reference.to_half(x).view(np.uint16))


@kernel
def merge(state: Any, state_peaks: Any, partial: Any, peaks: Any, seen: Any, group: Any) -> None:
    attention.merge_partials(state, state_peaks, partial, peaks, seen, group)


@kernel
def clear(state: Any, state_peaks: Any) -> None:
    attention.clear_state(state, state_peaks)


@on_each_target
@pytest.mark.parametrize(
    ("head_dim", "tokens", "group", "context"),
    [
        (16, 1, 1, 1),
        (64, 1, 3, 64),
        (64, 8, 3, 150),
        (80, 7, 1, 65),
        (96, 1, 5, 63),
        (128, 4, 2, 200),
        (32, 13, 1, 130),
    ],
)
@pytest.mark.parametrize(("window", "score_cap"), [(1000, 0.0), (64, 0.0), (1, 0.0), (64, 2.0)])
def test_attention(
    target: Target,
    head_dim: int,
    tokens: int,
    group: int,
    context: int,
    window: int,
    score_cap: float,
    rng: np.random.Generator,
) -> None:
    """Tokens that see different lengths of one context; what lies beyond is garbage."""
    blocks = -(-context // BLOCK_SIZE)
    keys, values = rng.normal(size=(2, blocks * BLOCK_SIZE, head_dim)).astype(np.float16)
    queries = rng.normal(size=(tokens * group, head_dim)).astype(np.float32)
    lengths = rng.integers(1, context + 1, tokens)
    lengths[-1] = context
    firsts = np.maximum(0, lengths - window)
    state = np.ones((tokens * group, head_dim), np.float32)
    state_peaks = np.ones((tokens * group, 2), np.float32)
    clear(state, state_peaks)
    partial, peaks = np.zeros_like(state), np.zeros_like(state_peaks)
    scores = np.zeros((tokens * group, BLOCK_SIZE), np.float32)
    widened = np.zeros((BLOCK_SIZE, head_dim), np.float32)
    for index in range(blocks):
        block = slice(index * BLOCK_SIZE, (index + 1) * BLOCK_SIZE)
        seen = np.stack([firsts, lengths], axis=1) - index * BLOCK_SIZE
        seen = np.ascontiguousarray(np.clip(seen, 0, BLOCK_SIZE))
        k, v = np.ascontiguousarray(keys[block].T), np.ascontiguousarray(values[block])
        attention.attend_block(
            target,
            address(k),
            address(v),
            address(k),
            address(v),
            head_dim,
            address(queries),
            tokens,
            group,
            address(seen),
            address(scores),
            address(widened),
            address(partial),
            address(peaks),
            np.float32(score_cap),
        )
        merge(state, state_peaks, partial, peaks, seen, group)
    got = state * (np.float32(1.0) / state_peaks[:, 1:])
    wanted = [
        reference.attention(query, keys[:n], values[:n], first, score_cap)
        for query, n, first in zip(
            queries, np.repeat(lengths, group), np.repeat(firsts, group), strict=True
        )
    ]
    assert_same_bits(got, np.stack(wanted))


def test_targets_are_chosen_by_name_and_by_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(targets.TARGET_VARIABLE, raising=False)
    with pytest.raises(
        ConfigError, match="no CPU target 'mmx'; there are avx512vnni, avx2, neondot, portable"
    ):
        choose_target("mmx")
    monkeypatch.setenv(targets.TARGET_VARIABLE, "portable")
    assert choose_target() is TARGETS["portable"]
    monkeypatch.delenv(targets.TARGET_VARIABLE)
    monkeypatch.setattr(targets.NUMBA_CONFIG, "CPU_FEATURES", "+avx2,+fma,+f16c,-avx512f")
    assert choose_target() is TARGETS["avx2"]
    with pytest.raises(ConfigError, match="lacks avx512f"):
        choose_target("avx512vnni")
    monkeypatch.setattr(targets.NUMBA_CONFIG, "CPU_FEATURES", "")
    assert choose_target() is TARGETS["portable"]
