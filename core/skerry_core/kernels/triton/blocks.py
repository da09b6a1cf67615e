"""KV blocks out of a pool and back in canonical form, any number of them in one Triton kernel.

The pool is `[layer, k|v, N, kv_head, 64, D]`, a block in canonical form
`[layer, k|v, kv_head, 64, D]`: each is 2 * layers runs of memory. Blocks outside of the pool lie
anywhere on the device, each at an address of its own, a multiple of 16: one after the other, or in
pages. KV in 8 bits is given in the dtype of the canonical side. `page_checksums` says what a
checksum is; here they are in i64, and whatever reads a block takes them of the values it reads.
"""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from skerry_core.kernels.torch.quantized import LARGEST
from skerry_core.kernels.triton.triton_math import in_8_bits
from skerry_core.page_checksums import MIX, SPREAD

_CHUNK = 2048  # elements of a program
_DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
_SPREAD, _MIX = tl.constexpr(SPREAD), tl.constexpr(MIX)


def addresses_of(data: Tensor) -> NDArray[np.int64]:
    """Return where the blocks of a tensor [n, ...] lie, i64[n]."""
    return data.data_ptr() + np.arange(len(data)) * (data.nbytes // max(len(data), 1))


def gather(
    kv: Tensor,
    blocks: Tensor,
    addresses: Tensor,
    dtype: torch.dtype,
    scales: Tensor | None = None,
    *,
    has_checksums: bool = True,
) -> Tensor:
    """Copy blocks i32[n] of the pool in `dtype` to addresses i64[n]; return their checksums i64[n].

    `scales` f32[layer, k|v, N, kv_head, 64] are those of a pool in 8 bits. D is even.
    """
    num_words = kv[:, :, 0].numel() * dtype.itemsize // 4
    sums = torch.full((len(blocks),), num_words, dtype=torch.int64, device=kv.device)
    _launch(kv, blocks, addresses, dtype, scales, sums, is_gather=True, has_checksums=has_checksums)
    return sums


def scatter(
    kv: Tensor,
    blocks: Tensor,
    addresses: Tensor,
    dtype: torch.dtype,
    scales: Tensor | None = None,
) -> None:
    """Overwrite blocks i32[n] of the pool from addresses i64[n], the inverse of `gather`."""
    _launch(kv, blocks, addresses, dtype, scales, blocks, is_gather=False, has_checksums=False)


def collect(addresses: Tensor, out: Tensor) -> Tensor:
    """Copy blocks from addresses i64[n] to `out` [n, ...]; return their checksums i64[n]."""
    return _sums(out, addresses)


def checksums(data: Tensor) -> Tensor:
    """Return checksums i64[n] of blocks [n, layer, k|v, kv_head, 64, D]."""
    return _sums(data, None)


def _sums(data: Tensor, addresses: Tensor | None) -> Tensor:
    words = data.view(len(data), -1).view(torch.int32)
    num_words = words.shape[1]
    sums = torch.full((len(data),), num_words, dtype=torch.int64, device=data.device)
    _sum[(len(words), triton.cdiv(num_words, _CHUNK))](
        words, sums if addresses is None else addresses, sums, num_words,
        IS_COPIED=addresses is not None, CHUNK=_CHUNK,
    )  # fmt: skip
    return sums


def _launch(
    kv: Tensor,
    blocks: Tensor,
    addresses: Tensor,
    dtype: torch.dtype,
    scales: Tensor | None,
    sums: Tensor,
    *,
    is_gather: bool,
    has_checksums: bool,
) -> None:
    layers, _, num_blocks, heads, slots, width = kv.shape
    rows = max(_CHUNK // triton.next_power_of_2(width), 1)  # of one slot and head each
    _copy[(len(blocks) * layers * 2, triton.cdiv(heads * slots, rows))](
        kv, kv if scales is None else scales, blocks, addresses, sums, num_blocks, layers * 2,
        DTYPE=_DTYPES[dtype], HEAD_SLOTS=heads * slots, WIDTH=width,
        PADDED=triton.next_power_of_2(width), ROWS=rows,
        MOST=LARGEST.get(kv.dtype, 0), IS_GATHER=is_gather, HAS_CHECKSUMS=has_checksums,
    )  # fmt: skip


@triton.jit
def _copy(
    kv, scales, blocks, addresses, sums, num_blocks, parts,
    DTYPE: tl.constexpr, HEAD_SLOTS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr, MOST: tl.constexpr, IS_GATHER: tl.constexpr, HAS_CHECKSUMS: tl.constexpr,
):  # fmt: skip
    """Copy some slots of one block of one layer's keys or values."""
    index, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    block = tl.load(blocks + index).to(tl.int64)
    row, d = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, PADDED)
    is_row = row < HEAD_SLOTS
    is_own = is_row[:, None] & (d < WIDTH)[None]
    pooled = (part.to(tl.int64) * num_blocks + block) * HEAD_SLOTS + row
    in_pool = kv + pooled[:, None] * WIDTH + d[None]
    start = _pointer(addresses + index, DTYPE)
    outside = start + (part.to(tl.int64) * HEAD_SLOTS + row)[:, None] * WIDTH + d[None]
    if IS_GATHER:
        values = tl.load(in_pool, mask=is_own, other=0.0)
        if MOST:
            scale = tl.load(scales + pooled, mask=is_row, other=0.0)[:, None]
            values = (values.to(tl.float32) * scale).to(DTYPE)
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
def _sum(data, addresses, sums, num_words, IS_COPIED: tl.constexpr, CHUNK: tl.constexpr):
    """Sum some words of one block, and perhaps copy them from where it lies."""
    page, word = tl.program_id(0), tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    place = data + page.to(tl.int64) * num_words + word
    source = _pointer(addresses + page, tl.int32) + word if IS_COPIED else place
    words = tl.load(source, mask=word < num_words, other=0)
    if IS_COPIED:
        tl.store(place, words, mask=word < num_words)
    weighed = _weighed(words.to(tl.uint32, bitcast=True), word)
    tl.atomic_add(sums + page, weighed, sem="relaxed")


@triton.jit
def _pointer(at, DTYPE: tl.constexpr):
    """Return a pointer to the address that is at a place."""
    return tl.multiple_of(tl.load(at).to(tl.pointer_type(DTYPE)), 16)


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
