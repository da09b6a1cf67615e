"""Products with weights of 8 and 4 bits, whose scales multiply sums instead of weights.

A program goes through 16 outputs, 16 groups at a time, as many products of tensor cores as there
are groups: integers are exact in bf16, so a group's sum is of the weights' own values, and is
multiplied by its scale once for each row. A minimum is added as often as x adds up to in its group,
a product by ones. Groups are dealt out to four warps, and summed at the end: a long row of weights
is split, always in the same way, so that a row's bits depend on neither the others nor their count.

Scales of the next groups are loaded while the weights of these are multiplied.
"""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import cast

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.jit import JITFunction

from skerry_core.kernels.torch.quantized import QuantizedMatrix
from skerry_core.kernels.triton.packed_bf16 import widened_4, widened_8

OUTPUTS = 16  # of a program: what tensor cores take
_ROW_GROUP = 32  # weights that stand for a group where a whole row shares a scale

_TILES = {8: (16, 4, 4), 16: (16, 4, 4), 32: (16, 8, 3), 64: (8, 8, 3)}
"""By rows of a tile: groups, warps and stages. The first two sum in one order."""


def narrow_product(x: Tensor, weight: QuantizedMatrix, rows_of_tile: int) -> Tensor:
    """Multiply [T, in] by [out, in]: [T, out]. A row's bits are the same in tiles of 8 and 16."""
    (num_outputs, inner), minima = weight.shape, weight.minima
    is_whole_row = weight.quants.dtype is torch.float8_e4m3fn
    group = _ROW_GROUP if is_whole_row else weight.group
    groups, warps, stages = _TILES[rows_of_tile]
    out = x.new_empty((len(x), num_outputs))
    _product_narrow[(triton.cdiv(num_outputs, OUTPUTS), triton.cdiv(len(x), rows_of_tile))](
        x, weight.quants, weight.scales, weight.scales if minima is None else minima, out,
        len(x), num_outputs, inner // group,
        BITS=weight.bits, HAS_MINIMA=minima is not None, IS_WHOLE_ROW=is_whole_row,
        IS_EVEN=inner % (groups * group) == 0, IS_PACKED=_is_packed(x.dtype),
        ROWS=rows_of_tile, OUTPUTS=OUTPUTS, GROUPS=groups, GROUP=group,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def widened(weight: QuantizedMatrix, dtype: torch.dtype) -> Tensor:
    """Return the weights themselves, [out, in]: for many rows, which wait for arithmetic alone."""
    (num_outputs, inner), minima = weight.shape, weight.minima
    out = torch.empty((num_outputs, inner), dtype=dtype, device=weight.device)
    chunk = 128 if weight.bits == 8 else 64  # bytes
    _widen[(num_outputs, triton.cdiv(inner * weight.bits // 8, 8 * chunk))](
        weight.quants, weight.scales, weight.scales if minima is None else minima, out, inner,
        BITS=weight.bits, HAS_MINIMA=minima is not None, GROUP=weight.group, BYTES=8 * chunk,
    )  # fmt: skip
    return out


def _is_packed(dtype: torch.dtype) -> bool:
    return dtype is torch.bfloat16 and isinstance(cast(object, _product_narrow), JITFunction)


@triton.jit(do_not_specialize=["rows"])
def _product_narrow(
    x, quants, scales, minima, out, rows, outputs, groups,
    BITS: tl.constexpr, HAS_MINIMA: tl.constexpr, IS_WHOLE_ROW: tl.constexpr,
    IS_EVEN: tl.constexpr, IS_PACKED: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Multiply [OUTPUTS, ROWS]."""
    BYTES: tl.constexpr = GROUP * BITS // 8
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    g, i = tl.arange(0, GROUPS), tl.arange(0, BYTES)
    # What is beyond rows and outputs is read as the last, and not written.
    row, output = tl.minimum(r, rows - 1).to(tl.int64), tl.minimum(n, outputs - 1).to(tl.int64)
    values = x + row[None, None] * groups * GROUP + (g[:, None] * GROUP + i[None])[:, :, None]
    # Were a thread to load 16 bytes, all of a group of 4 bits, Triton would widen them before they
    # are in shared memory, and bring them there as bf16.
    row_bytes = tl.multiple_of(groups * BYTES, 8) if BITS == 4 else groups * BYTES
    weights = quants + (output[None] * row_bytes + g[:, None] * BYTES)[:, :, None] + i[None, None]
    shared = output[None] * groups + g[:, None]
    scale = tl.load(scales + shared, mask=(g < groups)[:, None] & (not IS_WHOLE_ROW), other=0.0)
    minimum = tl.load(minima + shared, mask=(g < groups)[:, None] & HAS_MINIMA, other=0.0)
    total = tl.zeros([GROUPS, OUTPUTS, ROWS], tl.float32)
    for start in range(0, groups, GROUPS):
        is_group = (start + g < groups)[:, None, None]
        packed = _groups_of(weights + start * BYTES, is_group, IS_EVEN)
        first = _groups_of(values + start * GROUP, is_group, IS_EVEN)
        if IS_WHOLE_ROW:
            wide, _ = widened_8(packed, first.dtype, IS_PACKED)
            total = tl.dot(wide, first, total, input_precision="ieee")
        else:
            if BITS == 8:
                wide, ones = widened_8(packed, first.dtype, IS_PACKED)
                part = tl.dot(wide, first, input_precision="ieee")
                if HAS_MINIMA:
                    added = tl.dot(ones, first, input_precision="ieee")
            else:
                second = _groups_of(values + start * GROUP + BYTES, is_group, IS_EVEN)
                low, high, ones = widened_4(packed, first.dtype, IS_PACKED)
                part = tl.dot(low, first, input_precision="ieee")
                part = tl.dot(high, second, part, input_precision="ieee")
                if HAS_MINIMA:
                    added = tl.dot(ones, first, input_precision="ieee")
                    added = tl.dot(ones, second, added, input_precision="ieee")
            is_next = (start + GROUPS + g < groups)[:, None]
            total += part * scale.to(tl.float32)[:, :, None]
            scale = tl.load(scales + shared + start + GROUPS, mask=is_next, other=0.0)
            if HAS_MINIMA:
                total += added * minimum.to(tl.float32)[:, :, None]
                minimum = tl.load(minima + shared + start + GROUPS, mask=is_next, other=0.0)
    mixed = tl.sum(total, axis=0)
    if IS_WHOLE_ROW:
        mixed *= tl.load(scales + output)[:, None]
    is_own = (r < rows)[None] & (n < outputs)[:, None]
    at = r[None].to(tl.int64) * outputs + n[:, None]
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=is_own)


@triton.jit
def _groups_of(at, is_group, IS_EVEN: tl.constexpr):
    """Load groups, zeros beyond the last."""
    return tl.load(at) if IS_EVEN else tl.load(at, mask=is_group, other=0.0)


@triton.jit
def _widen(
    quants, scales, minima, out, inner,
    BITS: tl.constexpr, HAS_MINIMA: tl.constexpr, GROUP: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """Write some weights of one row."""
    row, byte = tl.program_id(0).to(tl.int64), tl.program_id(1) * BYTES + tl.arange(0, BYTES)
    row_bytes = inner * BITS // 8
    packed = tl.load(quants + row * row_bytes + byte, mask=byte < row_bytes, other=0.0)
    group = row * (inner // GROUP) + byte // (GROUP * BITS // 8)
    scale = tl.load(scales + group, mask=byte < row_bytes, other=0.0).to(tl.float32)
    minimum = 0.0
    if HAS_MINIMA:
        minimum = tl.load(minima + group, mask=byte < row_bytes, other=0.0).to(tl.float32)
    if BITS == 8:
        value = packed.to(tl.float32) * scale + minimum
        tl.store(out + row * inner + byte, value.to(out.dtype.element_ty), mask=byte < row_bytes)
    else:
        at = out + row * inner + byte // 16 * 32 + byte % 16
        low, high = (packed & 15).to(tl.float32), (packed >> 4).to(tl.float32)
        low, high = low * scale + minimum, high * scale + minimum
        tl.store(at, low.to(out.dtype.element_ty), mask=byte < row_bytes)
        tl.store(at + 16, high.to(out.dtype.element_ty), mask=byte < row_bytes)
