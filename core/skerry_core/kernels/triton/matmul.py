"""Products in Triton: of weights in fewer bits, and of floats with the same bits in any batch.

Quantised weights are widened as they are read. Many rows at once meet fp8 weights in fp8
themselves, each row with a scale of its own, except where bits must not depend on the batch.

All cut the inner dimension in a way that depends on the weights alone.
"""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from skerry_core.config import ConfigError
from skerry_core.kernels.torch.lossless import BF12Planes
from skerry_core.kernels.torch.quantized import LARGEST, Matrix, QuantizedMatrix
from skerry_core.kernels.triton.invariant_product import invariant_product
from skerry_core.kernels.triton.lossless import decoded, lossless_product
from skerry_core.kernels.triton.narrow_products import narrow_product, widened
from skerry_core.kernels.triton.triton_math import on_fp8_grid

_BATCHES = (8, 9, 16, 17, 64, 65, 300)  # rows: an end of each tile's, and several large tiles
_MANY_ROWS = 64  # beyond them arithmetic, not reading, is what takes time


def linear(x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
    """Multiply [T, in] by [out, in], add [out]: [T, out]. cuBLAS for floats, ours for quantised
    weights."""
    if isinstance(weight, QuantizedMatrix):
        if len(x) <= _MANY_ROWS:
            return _plus(narrow_product(x, weight, _rows_of_tile(len(x))), bias)
        if weight.quants.dtype is torch.float8_e4m3fn:
            return _plus(_fp8_product(x, weight), bias)
        return functional.linear(x, widened(weight, x.dtype), bias)
    if isinstance(weight, BF12Planes):
        if len(x) > _MANY_ROWS:
            return functional.linear(x, decoded(weight, x.dtype), bias)
        return _plus(lossless_product(x, weight, max(_rows_of_tile(len(x)), 16)), bias)
    return functional.linear(x, weight, bias)


def invariant_linear(x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
    """Multiply as `linear`, in orders that depend on weights alone: a row's bits depend on neither
    the others nor their count."""
    if isinstance(weight, QuantizedMatrix):
        return _plus(narrow_product(x, weight, 8 if len(x) <= 8 else 16), bias)
    if isinstance(weight, BF12Planes):
        return _plus(lossless_product(x, weight, rows_of_tile=16), bias)
    return _plus(invariant_product(x, weight), bias)


def check_products(weights: Sequence[Matrix]) -> None:
    """Raise ConfigError unless `invariant_linear` gives a row the same bits in batches of all sizes
    that run in different ways, of each of these matrices.

    Compilers choose instructions by tile. Which they are, and in which order they sum, depends on
    shapes and not on data, so equal rows that come out equal speak for all rows.
    """
    generator = torch.Generator().manual_seed(0)
    for weight in weights:
        dtype = weight.dtype if isinstance(weight, Tensor) else torch.bfloat16
        row = torch.randn(1, weight.shape[1], generator=generator).to(weight.device, dtype)
        alone = invariant_linear(row, weight, None)
        for count in _BATCHES:
            rows = invariant_linear(row.expand(count, -1).contiguous(), weight, None)
            if not torch.equal(rows, alone.expand_as(rows)):
                raise ConfigError(
                    f"deterministic is not possible on {weight.device}: a product by "
                    f"{list(weight.shape)} gives one of {count} rows other bits than it has alone"
                )


def _plus(product: Tensor, bias: Tensor | None) -> Tensor:
    return product if bias is None else product + bias


def _rows_of_tile(rows: int) -> int:
    return next(size for size in (8, 16, 32, 64) if rows <= size)


def _fp8_product(x: Tensor, weight: QuantizedMatrix) -> Tensor:
    """Multiply in fp8, as tensor cores take it; each row of x is narrowed by its largest.

    By cuBLAS's kernel for scales of rows where there is one.
    """
    narrow = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    scales = torch.empty(len(x), 1, dtype=torch.float32, device=x.device)
    num_outputs, inner = weight.shape
    padded = triton.next_power_of_2(inner)
    _narrow_rows[(len(x),)](
        x, narrow, scales, inner, MOST=LARGEST[torch.float8_e4m3fn], PADDED=padded,
        num_warps=min(max(padded // 512, 1), 16),
    )  # fmt: skip
    if scales_rows(x, weight):
        return torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
            narrow, weight.quants.t(), scales, weight.scales.t(), out_dtype=x.dtype
        )
    out = x.new_empty((len(x), num_outputs))
    _product_fp8[(triton.cdiv(num_outputs, 128), triton.cdiv(len(x), 128))](
        narrow, scales, weight.quants, weight.scales, out, len(x), num_outputs, inner,
        ROWS=128, OUTPUTS=128, INNER=128, num_warps=8, num_stages=3,
    )  # fmt: skip
    return out


def scales_rows(x: Tensor, weight: QuantizedMatrix) -> bool:
    """Return whether Torch has a product in fp8 with a scale for each row: of Hopper, to bf16."""
    return (
        hasattr(torch, "_scaled_mm")
        and x.is_cuda
        and x.dtype is torch.bfloat16
        and torch.cuda.get_device_capability(x.device) >= (9, 0)
        and not any(size % 16 for size in weight.shape)
    )


@triton.jit
def _narrow_rows(x, narrow, scales, width, MOST: tl.constexpr, PADDED: tl.constexpr):
    """Narrow a row by its largest."""
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    value = tl.load(x + row * width + i, mask=i < width, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(value), axis=0), 1e-12)
    tl.store(scales + row, largest / MOST)
    shares = on_fp8_grid(value * (MOST / largest))
    tl.store(narrow + row * width + i, shares.to(narrow.dtype.element_ty), mask=i < width)


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
