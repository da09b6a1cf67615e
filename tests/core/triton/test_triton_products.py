"""Triton's products against NumPy's of the weights' own values, and how weights become planes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.paged_kv import DEVICE
from tests.core.triton.triton_values import check_close, check_same, dtypes, random, wide
from tests.properties import examples
from torch import Tensor

pytest.importorskip("triton")

from skerry_core.config import ConfigError
from skerry_core.kernels.torch.lossless import BF12Planes, encoded
from skerry_core.kernels.torch.quantized import (
    FORMATS,
    Matrix,
    NarrowWeights,
    QuantizedMatrix,
    Rounded,
    in_fewer_bits,
    narrowed,
    stacked,
    unpack,
)
from skerry_core.kernels.triton import matmul as triton_matmul
from skerry_core.kernels.triton.lossless import decoded
from skerry_core.kernels.triton.narrow_products import widened
from skerry_core.weights.bf12 import encode
from skerry_core.weights.tensors import FORMATS as ALL_FORMATS
from skerry_core.weights.tensors import Bytes, FileTensor, dequantize, row_bytes

pytestmark = [pytest.mark.gpu, pytest.mark.triton]

Linear = Callable[[Tensor, Matrix, Tensor | None], Tensor]
LINEARS: tuple[Linear, ...] = (triton_matmul.linear, triton_matmul.invariant_linear)


def check_product(
    told: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, share: float | None = None
) -> None:
    """As NumPy multiplies in float64."""
    added = np.zeros(len(weight)) if bias is None else wide(bias)
    terms = np.abs(wide(x)) @ np.abs(wide(weight)).T + np.abs(added)
    check_close(told, wide(x) @ wide(weight).T + added, terms, share)


_SCALE_BYTES = {
    "Q4_K": slice(0, 4),
    "Q5_K": slice(0, 4),
    "Q6_K": slice(208, 210),
    "IQ4_NL": slice(0, 2),
    "IQ4_XS": slice(0, 2),
    "UINT4": slice(0, 2),
}


def ggml_rows(format_: str, rows: int, columns: int, seed: int) -> Bytes:
    """Rows of a format, random; of those that `gguf` cannot write, random bits and sane scales."""
    rng = np.random.default_rng(seed)
    if format_ not in _SCALE_BYTES:
        gguf = pytest.importorskip("gguf")
        values = rng.normal(size=(rows, columns)).astype(np.float32)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[format_])
    raw = rng.integers(0, 256, (rows, row_bytes(format_, columns)), np.uint8)
    scales = raw.reshape(rows, -1, ALL_FORMATS[format_].block_bytes)[..., _SCALE_BYTES[format_]]
    scales[:] = np.tile(np.array([0.01], np.float16).view(np.uint8), scales.shape[-1] // 2)
    if format_ == "UINT4":
        raw.reshape(rows, -1, 19)[..., 2] %= 17
    return raw


def matrix_and_values(format_: str, rows: int, columns: int) -> tuple[QuantizedMatrix, Tensor]:
    """Planes of a matrix, and what `tensors.dequantize` says its values are."""
    raw = ggml_rows(format_, rows, columns, seed=rows)
    values = dequantize(FileTensor(format_, (rows, columns), raw.reshape(-1)))
    matrix = unpack(torch.from_numpy(raw).to(DEVICE), format_, columns)
    return matrix, torch.from_numpy(values).to(DEVICE)


# --- planes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", FORMATS)
def test_planes_hold_the_weights_of_the_file(format_: str) -> None:
    matrix, values = matrix_and_values(format_, 5, 512)
    assert matrix.shape == (5, 512)
    exact = ("Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL")  # scales of the others are rounded
    atol = 0.0 if format_ in exact else 1e-3 * float(values.abs().max())
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


@pytest.mark.parametrize(
    ("narrow", "bits", "group", "error"),
    [("int4", 4, 32, 1 / 15), ("int8", 8, 32, 1 / 250), ("fp8", 8, 96, 1 / 27)],
)
def test_floats_are_narrowed(narrow: Rounded, bits: int, group: int, error: float) -> None:
    weight = random(37, 96, seed=1)
    weight[5] = 0
    matrix = narrowed(weight, narrow)
    assert (matrix.bits, matrix.group) == (bits, group)
    values = matrix.dequantized(torch.float32)
    assert (values - weight).abs().max() <= error * weight.abs().max()
    assert not values[5].any()
    both = stacked([matrix, matrix])
    assert isinstance(both, QuantizedMatrix)
    assert torch.equal(both.dequantized(torch.float32), torch.cat([values, values]))
    widened = matrix.widened().dequantized(torch.float32)
    assert (widened - weight).abs().max() <= 1.1 * error * weight.abs().max()


# --- products ------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", ["Q4_0", "Q4_1", "Q5_1", "Q8_0", "Q6_K"])  # all kinds of planes
@settings(max_examples=examples(2), deadline=None)
@given(
    outputs=st.integers(1, 70), super_blocks=st.integers(1, 2), tokens=st.integers(1, 40),
    dtype=dtypes, has_bias=st.booleans(),
)  # fmt: skip
def test_by_quantised_weights(
    format_: str, outputs: int, super_blocks: int, tokens: int, dtype: torch.dtype, has_bias: bool
) -> None:
    matrix, _ = matrix_and_values(format_, outputs, 256 * super_blocks)
    x = random(tokens, 256 * super_blocks, dtype=dtype)
    bias = random(outputs, dtype=dtype, seed=3) if has_bias else None
    for linear in LINEARS:
        check_product(linear(x, matrix, bias), x, matrix.dequantized(torch.float32), bias)


@pytest.mark.parametrize("narrow", ["int4", "int8", "fp8"])
@settings(max_examples=examples(2), deadline=None)
@given(
    outputs=st.integers(1, 70), groups=st.integers(1, 9), tokens=st.integers(1, 40), dtype=dtypes
)
def test_by_narrowed_floats(
    narrow: Rounded, outputs: int, groups: int, tokens: int, dtype: torch.dtype
) -> None:
    matrix = narrowed(random(outputs, 32 * groups, seed=1), narrow)
    x = random(tokens, 32 * groups, dtype=dtype)
    for linear in LINEARS:
        check_product(linear(x, matrix, None), x, matrix.dequantized(torch.float32))


@pytest.mark.parametrize("format_", ["Q4_1", "Q8_0", "Q6_K"])
def test_many_rows_meet_weights_that_were_widened_whole(format_: str) -> None:
    matrix, _ = matrix_and_values(format_, 19, 1280)
    expected = matrix.dequantized(torch.float32)
    for each in (matrix, matrix.widened()):
        torch.testing.assert_close(widened(each, torch.float32), expected, rtol=1e-6, atol=1e-6)
    x, bias = random(65, 1280), random(19, seed=3)
    check_product(triton_matmul.linear(x, matrix, bias), x, expected, bias)


def with_outliers(rows: int, columns: int) -> Tensor:
    """bf16 of which a few lie outside of their rows' windows."""
    weight = random(rows, columns, seed=1).bfloat16()
    weight[0, 0], weight[rows // 2, columns // 2], weight[-1, -1] = 0, 1e-9, -300
    weight[-1, 1:8] = 0
    return weight


@settings(max_examples=examples(6), deadline=None)
@given(rows=st.integers(1, 40), groups=st.integers(1, 20), makes_noise=st.booleans())
def test_12_bits_are_the_same_bits(rows: int, groups: int, makes_noise: bool) -> None:
    weight = with_outliers(rows, 16 * groups)
    if makes_noise:
        bits = np.random.default_rng(rows).integers(0, 65536, weight.shape).astype(np.uint16)
        weight = torch.from_numpy(bits).view(torch.bfloat16).to(DEVICE)
    matrix = encoded(weight)
    for told in (matrix.dequantized(torch.bfloat16), decoded(matrix, torch.bfloat16)):
        assert torch.equal(told.view(torch.int16), weight.view(torch.int16))
    host = encode(weight.cpu().view(torch.uint16).numpy())
    np.testing.assert_array_equal(matrix.firsts.cpu().numpy(), host.firsts)


def test_12_bits_are_for_what_bf16_has() -> None:
    weight = with_outliers(40, 96)
    wide = weight.float()
    matrix = in_fewer_bits(wide, "bf12")
    assert isinstance(matrix, BF12Planes)
    assert torch.equal(matrix.dequantized(torch.float32), wide)
    assert in_fewer_bits(finer := wide + 2**-20, "bf12") is finer
    both = stacked([matrix, matrix])
    assert isinstance(both, BF12Planes)
    assert torch.equal(both.dequantized(torch.float32), torch.cat([wide, wide]))
    mixed = stacked([matrix, narrowed(wide, "int8")])
    assert isinstance(mixed, Tensor)
    assert torch.equal(mixed[:40], weight)


@pytest.mark.parametrize("tokens", [1, 20, 65])
def test_by_12_bits(tokens: int) -> None:
    weight, x = with_outliers(37, 416), random(tokens, 416)
    for linear in LINEARS:
        check_product(linear(x, encoded(weight), x[0, :37]), x, weight, x[0, :37])


@settings(max_examples=examples(3), deadline=None)
@given(outputs=st.integers(1, 150), groups=st.integers(1, 9), tokens=st.integers(65, 140))
def test_many_rows_meet_fp8_weights_in_fp8(outputs: int, groups: int, tokens: int) -> None:
    x, bias = random(tokens, 32 * groups, seed=2), random(outputs, seed=3)
    x[7] = 0
    matrix = narrowed(random(outputs, 32 * groups, seed=1), "fp8")
    rows = narrowed(x, "fp8").dequantized(torch.float32)
    told = triton_matmul.linear(x, matrix, bias)
    weights = matrix.dequantized(torch.float32)
    check_product(told, rows, weights, bias, share=1e-4)  # a GPU adds fp8 products in fewer bits
    assert not torch.equal(told, triton_matmul.invariant_linear(x, matrix, bias))


@settings(max_examples=examples(3), deadline=None)
@given(
    tokens=st.integers(1, 70), inner=st.integers(1, 150), outputs=st.integers(1, 50), dtype=dtypes
)
def test_our_own_product_has_the_same_bits_at_any_size_of_the_batch(
    tokens: int, inner: int, outputs: int, dtype: torch.dtype
) -> None:
    x, weight = random(tokens, inner, dtype=dtype), random(outputs, inner, dtype=dtype, seed=1)
    product = triton_matmul.invariant_linear(x, weight, None)
    check_product(product, x, weight)
    alone = triton_matmul.invariant_linear(x[tokens // 2 :][:1], weight, None)
    check_same(alone[0], product[tokens // 2])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_our_own_product_adds_chunks_in_their_order_in_tiles_of_all_sizes(
    dtype: torch.dtype,
) -> None:
    """Three chunks of the inner dimension, the last short: by a program each, and by one."""
    x, weight = random(133, 2100, dtype=dtype), random(130, 2100, dtype=dtype, seed=1)
    for tokens in (1, 17, 133):
        product = triton_matmul.invariant_linear(x[:tokens], weight, None)
        check_product(product, x[:tokens], weight)
        parts = [wide(x[:tokens, a:b]) @ wide(weight[:, a:b]).T for a, b in
                 ((0, 1024), (1024, 2048), (2048, 2100))]  # fmt: skip
        np.testing.assert_allclose(wide(product), sum(parts), rtol=2e-3, atol=0.2)


def test_a_product_whose_bits_depend_on_the_batch_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = random(5, 64)

    def product(x: Tensor, weight: Tensor, most: int = 1000) -> Tensor:
        return torch.stack([weight @ row for row in x]) * (1 + 1e-6 * (len(x) > most))

    monkeypatch.setattr(triton_matmul, "invariant_product", product)
    triton_matmul.check_products([weight])
    monkeypatch.setattr(triton_matmul, "invariant_product", partial(product, most=64))
    with pytest.raises(ConfigError, match=r"a product by \[5, 64\] gives one of 65 rows"):
        triton_matmul.check_products([weight])


@pytest.mark.skipif(DEVICE.type != "cuda", reason="the interpreter's products are NumPy's")
@pytest.mark.parametrize("form", [None, "int4", "int8", "fp8", "bf12"])
def test_every_product_has_the_same_bits_in_any_batch(form: NarrowWeights | None) -> None:
    weight = random(1500, 4096, dtype=torch.bfloat16)
    triton_matmul.check_products([weight if form is None else in_fewer_bits(weight, form)])
