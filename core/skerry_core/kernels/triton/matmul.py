"""Products in Triton: of weights in fewer bits, and of floats with the same bits in any batch.

Quantised weights are widened as they are read. Many rows at once meet fp8 weights in fp8
themselves, each row with a scale of its own, except where bits must not depend on the batch.

All run one tile after another along the inner dimension, never split, so a row's sums are made in
one order whatever stands beside it.
"""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from skerry_core.kernels.torch.lossless import BF12Planes
from skerry_core.kernels.torch.quantized import LARGEST, Matrix, QuantizedMatrix
from skerry_core.kernels.triton.lossless import decoded, lossless_product

_GROUP: tl.constexpr = tl.constexpr(32)  # weights whose 4-bit halves share 16 bytes
_MANY_ROWS = 64  # beyond them arithmetic, not reading, is what takes time


def linear(x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
    """Multiply [T, in] by [out, in], add [out]: [T, out]. cuBLAS for floats, ours for quantised
    weights."""
    if isinstance(weight, QuantizedMatrix):
        if weight.quants.dtype is torch.float8_e4m3fn and len(x) > _MANY_ROWS:
            return _plus(_fp8_product(x, weight), bias)
        return _plus(_quantized_product(x, weight, _rows_of_tile(len(x))), bias)
    if isinstance(weight, BF12Planes):
        if len(x) > _MANY_ROWS:
            return functional.linear(x, decoded(weight, x.dtype), bias)
        return _plus(lossless_product(x, weight, _rows_of_tile(len(x))), bias)
    return functional.linear(x, weight, bias)


def invariant_linear(x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
    """Multiply as `linear`, in tiles of one shape: a row's bits do not depend on the others."""
    if isinstance(weight, QuantizedMatrix):
        return _plus(_quantized_product(x, weight, rows_of_tile=16), bias)
    if isinstance(weight, BF12Planes):
        return _plus(lossless_product(x, weight, rows_of_tile=16), bias)
    out = x.new_empty((len(x), len(weight)))
    _product[(triton.cdiv(len(weight), 32), triton.cdiv(len(x), 64))](
        x, weight, out, len(x), *weight.shape, ROWS=64, OUTPUTS=32, INNER=64, num_warps=4,
        num_stages=4,
    )  # fmt: skip
    return _plus(out, bias)


def _plus(product: Tensor, bias: Tensor | None) -> Tensor:
    return product if bias is None else product + bias


def _rows_of_tile(rows: int) -> int:
    return 16 if rows <= 16 else 32 if rows <= 32 else 64


def _quantized_product(x: Tensor, weight: QuantizedMatrix, rows_of_tile: int) -> Tensor:
    (num_outputs, inner), group = weight.shape, weight.group
    out = x.new_empty((len(x), num_outputs))
    kernel = _product_4 if weight.bits == 4 else _product_8
    minima = weight.minima
    kernel[(triton.cdiv(num_outputs, 32), triton.cdiv(len(x), rows_of_tile))](
        x, weight.quants, weight.scales, weight.scales if minima is None else minima, out,
        len(x), num_outputs, inner, HAS_MINIMA=minima is not None, GROUP=group,
        ROWS=rows_of_tile, OUTPUTS=32, INNER=128, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


def _fp8_product(x: Tensor, weight: QuantizedMatrix) -> Tensor:
    """Multiply in fp8, as tensor cores take it; each row of x is narrowed by its largest."""
    most = LARGEST[torch.float8_e4m3fn]
    largest = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12)
    narrow = (x.float() * (most / largest)).to(torch.float8_e4m3fn)
    num_outputs, inner = weight.shape
    out = x.new_empty((len(x), num_outputs))
    _product_fp8[(triton.cdiv(num_outputs, 128), triton.cdiv(len(x), 128))](
        narrow, largest / most, weight.quants, weight.scales, out, len(x), num_outputs, inner,
        ROWS=128, OUTPUTS=128, INNER=128, num_warps=8, num_stages=3,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["rows"])
def _product(
    x, weight, out, rows, outputs, inner,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, inner, INNER):
        k = start + tl.arange(0, INNER)
        values = _rows_of(x, r, rows, k, inner)
        total = tl.dot(
            values, tl.trans(_rows_of(weight, n, outputs, k, inner)), total, input_precision="ieee"
        )
    _write(out, r, rows, n, outputs, total)


@triton.jit(do_not_specialize=["rows"])
def _product_fp8(
    x, x_scales, weight, scales, out, rows, outputs, inner,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Multiply [ROWS, OUTPUTS] of rows and weights in fp8, each row of both with a scale."""
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, inner, INNER):
        k = start + tl.arange(0, INNER)
        values = _rows_of(x, r, rows, k, inner)
        # Tensor cores add fp8 products in fewer bits than fp32 has; so not over many tiles.
        total = tl.dot(
            values, tl.trans(_rows_of(weight, n, outputs, k, inner)), total,
            max_num_imprecise_acc=INNER,
        )  # fmt: skip
    total *= tl.load(x_scales + r, mask=r < rows, other=0.0)[:, None]
    total *= tl.load(scales + n, mask=n < outputs, other=0.0)[None]
    _write(out, r, rows, n, outputs, total)


@triton.jit(do_not_specialize=["rows"])
def _product_8(
    x, quants, scales, minima, out, rows, outputs, inner, HAS_MINIMA: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Multiply [ROWS, OUTPUTS] by 8-bit weights."""
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, inner, INNER):
        k = start + tl.arange(0, INNER)
        weight = _rows_of(quants, n, outputs, k, inner).to(tl.float32)
        weight *= _rows_of(scales, n, outputs, k // GROUP, inner // GROUP).to(tl.float32)
        if HAS_MINIMA:
            weight += _rows_of(minima, n, outputs, k // GROUP, inner // GROUP).to(tl.float32)
        values = _rows_of(x, r, rows, k, inner)
        total = tl.dot(values, tl.trans(weight.to(values.dtype)), total, input_precision="ieee")
    _write(out, r, rows, n, outputs, total)


@triton.jit(do_not_specialize=["rows"])
def _product_4(
    x, quants, scales, minima, out, rows, outputs, inner, HAS_MINIMA: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Multiply [ROWS, OUTPUTS] by 4-bit weights, low halves and high halves in turn."""
    tl.static_assert(GROUP == _GROUP)
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, inner // 2, INNER // 2):
        byte = start + tl.arange(0, INNER // 2)
        group = byte // 16
        packed = _rows_of(quants, n, outputs, byte, inner // 2)
        scale = _rows_of(scales, n, outputs, group, inner // GROUP).to(tl.float32)
        low, high = (packed & 15).to(tl.float32) * scale, (packed >> 4).to(tl.float32) * scale
        if HAS_MINIMA:
            minimum = _rows_of(minima, n, outputs, group, inner // GROUP).to(tl.float32)
            low, high = low + minimum, high + minimum
        k = group * GROUP + byte % 16
        first, second = _rows_of(x, r, rows, k, inner), _rows_of(x, r, rows, k + 16, inner)
        total = tl.dot(first, tl.trans(low.to(first.dtype)), total, input_precision="ieee")
        total = tl.dot(second, tl.trans(high.to(first.dtype)), total, input_precision="ieee")
    _write(out, r, rows, n, outputs, total)


@triton.jit
def _rows_of(matrix, r, rows, k, columns):
    """Return [r, k] of a matrix [rows, columns], zero beyond it."""
    at = r[:, None].to(tl.int64) * columns + k[None]
    return tl.load(matrix + at, mask=(r < rows)[:, None] & (k < columns)[None], other=0.0)


@triton.jit
def _write(out, r, rows, n, outputs, total):
    at = r[:, None].to(tl.int64) * outputs + n[None]
    is_own = (r < rows)[:, None] & (n < outputs)[None]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=is_own)
