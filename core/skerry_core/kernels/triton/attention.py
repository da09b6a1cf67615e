"""Attention over paged KV in Triton. One layer's KV is `[2, N, Hk, 64, D]`: keys, values.

A program serves one KV head and a tile of up to BLOCK / G consecutive tokens of one sequence, each
with its G query heads, and goes through 64-token blocks in order. What no token of the tile sees is
never loaded, since idle blocks may hold anything, NaN included.

`attend_whole` goes through a context in one piece with a tile of many tokens: for prefill; what all
of them see is not masked. `split_attention` has the other way. A block that a token does not see
leaves its maximum, sum and accumulator untouched, bit for bit.
"""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.triton.triton_math import LOG2_E

WHOLE_TILE = 128  # rows of a tile, of which four warps have 64 in registers each
_NARROW_STAGES = 5  # of loads of KV in 8 bits: the least with which Triton has two in flight

_BLOCK: tl.constexpr = tl.constexpr(BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Which tokens attend together. Entries with a length of 0 are padding."""

    rows: Tensor  # i32[n]     the sequence's row of the block tables
    starts: Tensor  # i32[n]   the first token
    lengths: Tensor  # i32[n]  tokens, at most `tile_tokens`


def tile_tokens(tile: int, group: int) -> int:
    """Return tokens of a tile of so many rows, where a KV head serves `group` query heads."""
    return max(tile // group, 1)


def attend_whole(
    q: Tensor,  # [T, >= H, D], of which the first H heads are queries
    kv: Tensor,  # [2, N, Hk, 64, D]
    tables: Tensor,  # i32[R, M]
    positions: Tensor,  # i32[T]
    tiles: Tiles,
    out: Tensor,  # [T, H, D], written
    *,
    window: int | None,
    scales: Tensor | None = None,  # f32[2, N, Hk, 64] of KV in 8 bits
) -> None:
    """Attend with every token of the tiles to its context, its own KV stored before.

    A tile's lengths are at most `tile_tokens(WHOLE_TILE, H / Hk)`.
    """
    _, heads, width = out.shape
    group = heads // kv.shape[2]
    rows = min(WHOLE_TILE, 32) if q.dtype is torch.float32 else WHOLE_TILE  # of a program
    parts = triton.cdiv(tile_tokens(WHOLE_TILE, group), tile_tokens(rows, group))
    _attend_whole[(tiles.rows.shape[0], kv.shape[2], parts)](
        q, kv, kv if scales is None else scales, tables, positions,
        tiles.rows, tiles.starts, tiles.lengths, out,
        q.stride(0), kv.stride(0), tables.stride(0), width**-0.5,
        HEADS=heads, GROUP=group, WIDTH=width, PADDED=triton.next_power_of_2(width),
        TILE=max(rows, triton.next_power_of_2(group)), WINDOW=window or 0,
        IS_SCALED=scales is not None, num_warps=max(rows // 16, 4),
        num_stages=3 if scales is None else _NARROW_STAGES,
    )  # fmt: skip


@triton.jit(do_not_specialize=["table_stride"])
def _attend_whole(
    q, kv, scales, tables, positions, tile_rows, tile_starts, tile_lengths, out,
    q_stride, value_offset, table_stride, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, IS_SCALED: tl.constexpr,
):  # fmt: skip
    """Attend with a part of one tile, one KV head to the whole context."""
    tile, head, skipped = tl.program_id(0), tl.program_id(1), tl.program_id(2) * (TILE // GROUP)
    i, length = tl.arange(0, TILE), tl.load(tile_lengths + tile) - skipped
    if length <= 0:
        return
    is_row = (i // GROUP < length) & (i < TILE // GROUP * GROUP)
    tokens = tl.load(tile_starts + tile) + skipped + i // GROUP
    position = tl.load(positions + tokens, mask=is_row, other=-1)
    first, nearest, last = visible_range(position, is_row, WINDOW)
    heads, d = head * GROUP + i % GROUP, tl.arange(0, PADDED)
    table = tables + tl.load(tile_rows + tile) * table_stride
    is_own = is_row[:, None] & (d < WIDTH)[None]
    at = tokens[:, None].to(tl.int64) * q_stride + heads[:, None] * WIDTH + d[None]
    queries = tl.load(q + at, mask=is_own, other=0.0)
    largest, total, mixed = nothing_seen(TILE, PADDED)
    begin = first // _BLOCK
    if not WINDOW:  # blocks that all tokens see, of which nothing is masked
        whole = (nearest + 1) // _BLOCK
        largest, total, mixed = attend_blocks(
            largest, total, mixed, queries, kv, scales, table, position, head, begin, whole,
            first, last, value_offset, scale,
            HEADS // GROUP, WIDTH, PADDED, WINDOW, IS_SCALED, True,
        )  # fmt: skip
        begin = whole
    _, total, mixed = attend_blocks(
        largest, total, mixed, queries, kv, scales, table, position, head, begin,
        last // _BLOCK + 1, first, last, value_offset, scale,
        HEADS // GROUP, WIDTH, PADDED, WINDOW, IS_SCALED, False,
    )  # fmt: skip
    at = (tokens[:, None].to(tl.int64) * HEADS + heads[:, None]) * WIDTH + d[None]
    attended = mixed / tl.where(is_row, total, 1.0)[:, None]
    tl.store(out + at, attended.to(out.dtype.element_ty), mask=is_own)


@triton.jit
def visible_range(position, is_row, WINDOW: tl.constexpr):
    """Return the first position that any row of a tile sees, the last that all see, and the last
    that any sees; this is -1 when there is no row."""
    nearest = tl.min(tl.where(is_row, position, 0x7FFFFFFF), axis=0)
    first = tl.maximum(nearest - WINDOW + 1, 0) if WINDOW else 0
    return first, nearest, tl.max(position, axis=0)


@triton.jit
def nothing_seen(TILE: tl.constexpr, PADDED: tl.constexpr):
    """Return what `attend_blocks` has of rows that have seen nothing."""
    largest = tl.full([TILE], float("-inf"), tl.float32)
    return largest, tl.zeros([TILE], tl.float32), tl.zeros([TILE, PADDED], tl.float32)


@triton.jit
def attend_blocks(
    largest, total, mixed,  # of blocks before: -inf, 0 and 0 where rows saw none
    queries,  # [TILE, PADDED]
    kv, scales,
    table,  # the row's blocks
    position,  # i32[TILE]  -1: no row
    head, begin, end, first, last, value_offset, scale,
    KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, WINDOW: tl.constexpr,
    IS_SCALED: tl.constexpr, IS_ALL_SEEN: tl.constexpr,
):  # fmt: skip
    """Go on over blocks [begin, end): return (maximum, sum, accumulator) of rows, logarithms to
    base 2. With `IS_ALL_SEEN` every row sees all of them."""
    slot, d = tl.arange(0, _BLOCK), tl.arange(0, PADDED)
    for index in range(begin, end):
        key = index * _BLOCK + slot
        is_seen = tl.full([_BLOCK], IS_ALL_SEEN, tl.int1) | (key >= first) & (key <= last)
        own = (tl.load(table + index).to(tl.int64) * KV_HEADS + head) * _BLOCK + slot
        at = own[:, None] * WIDTH + d[None]
        is_loaded = is_seen[:, None] & (d < WIDTH)[None]
        keys = tl.load(kv + at, mask=is_loaded, other=0.0).to(queries.dtype)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        if IS_SCALED:
            scores *= tl.load(scales + own, mask=is_seen, other=0.0)[None]
        if not IS_ALL_SEEN:
            visible = key[None] <= position[:, None]
            if WINDOW:
                visible &= key[None] > position[:, None] - WINDOW
            scores = tl.where(visible, scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1) * (scale * LOG2_E))
        finite = new if IS_ALL_SEEN else tl.where(new == float("-inf"), 0.0, new)
        shares = tl.exp2(scores * (scale * LOG2_E) - finite[:, None])
        keep = tl.exp2(largest - finite)
        total = total * keep + tl.sum(shares, axis=1)
        values = tl.load(kv + value_offset + at, mask=is_loaded, other=0.0).to(queries.dtype)
        if IS_SCALED:
            step = value_offset // WIDTH
            shares *= tl.load(scales + step + own, mask=is_seen, other=0.0)[None]
        mixed = mixed * keep[:, None] + tl.dot(
            shares.to(queries.dtype), values, input_precision="ieee"
        )
        largest = new
    return largest, total, mixed
