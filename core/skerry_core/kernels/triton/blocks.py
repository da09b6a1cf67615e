"""KV blocks out of a pool and back in canonical form, any number of them in one Triton kernel.

The pool is `[layer, k|v, N, kv_head, 64, D]`, a block in canonical form
`[layer, k|v, kv_head, 64, D]`: each is 2 * layers runs of memory. KV in 8 bits is given in the
dtype of the canonical side. `page_checksums` says what a checksum is; here they are in i64, and a
gather takes them of the values that it reads anyway.
"""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from skerry_core.kernels.torch.quantized import LARGEST
from skerry_core.kernels.triton.triton_math import in_8_bits
from skerry_core.page_checksums import MIX, SPREAD

_CHUNK = 2048  # elements of a program
_SPREAD, _MIX = tl.constexpr(SPREAD), tl.constexpr(MIX)


def gather(
    kv: Tensor,
    blocks: Tensor,
    out: Tensor,
    scales: Tensor | None = None,
    *,
    has_checksums: bool = True,
) -> Tensor:
    """Copy blocks i32[n] of the pool to `out` [n, layer, k|v, kv_head, 64, D]; their checksums
    i64[n].

    `scales` f32[layer, k|v, N, kv_head, 64] are those of a pool in 8 bits. D is even.
    """
    sums = _empty_sums(out)
    _launch(kv, blocks, out, scales, sums, is_gather=True, has_checksums=has_checksums)
    return sums


def scatter(kv: Tensor, blocks: Tensor, data: Tensor, scales: Tensor | None = None) -> None:
    """Overwrite blocks i32[n] of the pool with `data`, the inverse of `gather`."""
    _launch(kv, blocks, data, scales, data, is_gather=False, has_checksums=False)


def checksums(data: Tensor) -> Tensor:
    """Return checksums i64[n] of blocks [n, layer, k|v, kv_head, 64, D]."""
    sums, words = _empty_sums(data), data.view(len(data), -1).view(torch.int32)
    num_words = words.shape[1]
    _sum[(len(words), triton.cdiv(num_words, _CHUNK))](words, sums, num_words, CHUNK=_CHUNK)
    return sums


def _empty_sums(data: Tensor) -> Tensor:
    num_words = data[0].nbytes // 4
    return torch.full((len(data),), num_words, dtype=torch.int64, device=data.device)


def _launch(
    kv: Tensor,
    blocks: Tensor,
    data: Tensor,
    scales: Tensor | None,
    sums: Tensor,
    *,
    is_gather: bool,
    has_checksums: bool,
) -> None:
    layers, _, num_blocks, heads, slots, width = kv.shape
    rows = max(_CHUNK // triton.next_power_of_2(width), 1)  # of one slot and head each
    _copy[(len(blocks) * layers * 2, triton.cdiv(heads * slots, rows))](
        kv, kv if scales is None else scales, blocks, data, sums, num_blocks, layers * 2,
        HEAD_SLOTS=heads * slots, WIDTH=width, PADDED=triton.next_power_of_2(width), ROWS=rows,
        MOST=LARGEST.get(kv.dtype, 0), IS_GATHER=is_gather, HAS_CHECKSUMS=has_checksums,
    )  # fmt: skip


@triton.jit
def _copy(
    kv, scales, blocks, data, sums, num_blocks, parts,
    HEAD_SLOTS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
    MOST: tl.constexpr, IS_GATHER: tl.constexpr, HAS_CHECKSUMS: tl.constexpr,
):  # fmt: skip
    """Copy some slots of one block of one layer's keys or values."""
    index, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    block = tl.load(blocks + index).to(tl.int64)
    row, d = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, PADDED)
    is_row = row < HEAD_SLOTS
    is_own = is_row[:, None] & (d < WIDTH)[None]
    pooled = (part.to(tl.int64) * num_blocks + block) * HEAD_SLOTS + row
    place = tl.program_id(0).to(tl.int64) * HEAD_SLOTS + row
    in_pool = kv + pooled[:, None] * WIDTH + d[None]
    outside = data + place[:, None] * WIDTH + d[None]
    if IS_GATHER:
        values = tl.load(in_pool, mask=is_own, other=0.0)
        if MOST:
            scale = tl.load(scales + pooled, mask=is_row, other=0.0)[:, None]
            values = (values.to(tl.float32) * scale).to(data.dtype.element_ty)
        tl.store(outside, values, mask=is_own)
        if HAS_CHECKSUMS:
            words = _words(values, ROWS, PADDED)
            width = WIDTH * values.dtype.primitive_bitwidth // 32
            word = (part * HEAD_SLOTS + row)[:, None] * width + tl.arange(0, words.shape[1])[None]
            tl.atomic_add(sums + index, _weighed(words, word), sem="relaxed")
    else:
        values = tl.load(outside, mask=is_own, other=0.0)
        if MOST:
            wide = values.to(tl.float32)
            scale = tl.maximum(tl.max(tl.abs(wide), axis=1), 1e-12) / MOST
            tl.store(scales + pooled, scale, mask=is_row)
            values = in_8_bits(wide / scale[:, None], MOST).to(kv.dtype.element_ty)
        tl.store(in_pool, values, mask=is_own)


@triton.jit
def _sum(data, sums, num_words, CHUNK: tl.constexpr):
    """Sum some words of one block."""
    page, word = tl.program_id(0), tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    start = data + page.to(tl.int64) * num_words
    words = tl.load(start + word, mask=word < num_words, other=0).to(tl.uint32, bitcast=True)
    tl.atomic_add(sums + page, _weighed(words, word), sem="relaxed")


@triton.jit
def _words(values, ROWS: tl.constexpr, PADDED: tl.constexpr):
    """Return values [ROWS, PADDED] of 16 or 32 bits as words u32[ROWS, …]."""
    if values.dtype.primitive_bitwidth == 32:
        words = values.to(tl.uint32, bitcast=True)
    else:
        halves = values.to(tl.uint16, bitcast=True).to(tl.uint32)
        low, high = tl.split(tl.reshape(halves, (ROWS, PADDED // 2, 2)))
        words = low | (high << 16)
    return words


@triton.jit
def _weighed(words, index):
    """Sum words u32, each times its index's weight: i64."""
    x = (2 * index + 1).to(tl.uint32) * _SPREAD
    weights = (x ^ ((x >> 16) << 1)) * _MIX
    total = tl.sum(words.to(tl.uint64) * weights.to(tl.uint64))
    return total.to(tl.int64, bitcast=True)
