"""Attention in pieces of 256 tokens: for decoding, and where bits are to be equal in any batch.

A program attends to one piece of a tile's context with one KV head. Where tokens decode, it rotates
their queries itself; the program whose piece ends a context stores the token's own key and value
first, and reads them back as it does all others.

Pieces are merged a few neighbours at a time, by the program that is the last of them to arrive, and
so is what comes of it, level by level, until a context is one: 391 pieces of 100,000 tokens eight
at a time, in three levels. Which neighbours is a matter of their places in the context alone,
whoever is last, and so are a token's bits. No program waits for another.
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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.torch.quantized import LARGEST
from skerry_core.kernels.triton.attention import Tiles, attend_blocks, nothing_seen, visible_range
from skerry_core.kernels.triton.dependent_launch import launch_options
from skerry_core.kernels.triton.triton_ops import NewHeads, store_keys, store_values

SPLIT_BLOCKS = 4  # blocks per piece of a context: 256 tokens
SPLIT_TILE = 16  # rows of a tile: the least that tensor cores take
_MERGED = 32  # parts that a program merges, times query heads: what registers hold beside the rest
_LEAST_MERGED = 4  # at two at a time there would be more merges than pieces, and `arrivals`
_PROGRAMS = 512  # about as many as a device runs at a time: an empty one is not free
_STAGES = 5  # of loads of a piece's blocks: the least with which Triton has two in flight

_BLOCK: tl.constexpr = tl.constexpr(BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class ContextPieces:
    """Every piece of the tiles' contexts, of each tile one after the other."""

    tiles: Tensor  # i32[n]       whose it is
    indices: Tensor  # i32[n]     which of its context
    blocks: Tensor  # i32[n, SPLIT_BLOCKS]
    parts: Tensor  # i32[tiles]   place of a tile's first part: of each piece one for each token
    count: Tensor  # i32[1]       how many there are, of n
    arrivals: Tensor  # i32[>= n, Hk]  of parts at a merge: zeros, and again afterwards
    num_parts: int  # at most, as the host knows


def attend_split(
    q: Tensor,  # [T, >= H, D], of which the first H heads are queries
    kv: Tensor,  # [2, N, Hk, 64, D]
    positions: Tensor,  # i32[T]
    tiles: Tiles,
    pieces: ContextPieces,
    out: Tensor,  # [T, H, D], written
    *,
    window: int | None,
    scales: Tensor | None = None,  # f32[2, N, Hk, 64] of KV in 8 bits
    new: NewHeads | None = None,
    programs: int = _PROGRAMS,  # at most, or one for each KV head
) -> None:
    """Attend with every token of the tiles to its context.

    A tile's lengths are at most `tile_tokens(SPLIT_TILE, H / Hk)`. Queries are rotated, and keys
    and values stored before, unless all is `new`: then tiles are of one token, and `q` is
    [T, H + 2 Hk, D], whose queries, keys and values are as a product leaves them.
    """
    _, heads, width = out.shape
    kv_heads = kv.shape[2]
    group = heads // kv_heads
    padded = triton.next_power_of_2(group)
    parts = out.new_empty((pieces.num_parts, heads, width), dtype=torch.float32)
    sums = out.new_empty((pieces.num_parts, heads, 2), dtype=torch.float32)
    turns = min(len(pieces.tiles), max(programs // kv_heads, 1))
    own = NewHeads(positions, None) if new is None else new
    cos, sin = (q, q) if own.rope is None else own.rope
    _attend_split[(turns, kv_heads)](
        q, kv, kv if scales is None else scales, positions, tiles.starts, tiles.lengths,
        pieces.tiles, pieces.indices, pieces.blocks, pieces.parts, pieces.count, pieces.arrivals,
        parts, sums, out, own.slots, cos, sin, q if own.q_norm is None else own.q_norm,
        q if own.k_norm is None else own.k_norm, q.stride(0), kv.stride(0), width**-0.5, own.eps,
        HEADS=heads, GROUP=group, PADDED_GROUP=padded, WIDTH=width,
        PADDED=triton.next_power_of_2(width), TILE=max(SPLIT_TILE, padded), SPLIT=SPLIT_BLOCKS,
        MERGED=max(_MERGED // padded, _LEAST_MERGED), WINDOW=window or 0,
        MOST=LARGEST.get(kv.dtype, 0), IS_NEW=new is not None, IS_NORMED=own.is_normed,
        IS_ROTATED=own.rope is not None,
        num_warps=4, num_stages=_STAGES, **launch_options(q.device),
    )  # fmt: skip


@triton.jit
def _attend_split(
    q, kv, scales, positions, tile_starts, tile_lengths,
    piece_tiles, piece_indices, piece_blocks, first_parts, num_pieces, arrivals, parts, sums, out,
    slots, cos, sin, q_norm, k_norm, q_stride, value_offset, scale, eps,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED_GROUP: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr,
    TILE: tl.constexpr, SPLIT: tl.constexpr, MERGED: tl.constexpr, WINDOW: tl.constexpr,
    MOST: tl.constexpr, IS_NEW: tl.constexpr, IS_NORMED: tl.constexpr, IS_ROTATED: tl.constexpr,
    HAS_PDL: tl.constexpr,
):  # fmt: skip
    """Attend to some pieces with one KV head, and merge those that all have arrived of."""
    head, i, d = tl.program_id(1), tl.arange(0, TILE), tl.arange(0, PADDED)
    heads = head * GROUP + i % GROUP
    if HAS_PDL:
        gdc_launch_dependents()
        gdc_wait()
    # What is the same for all pieces would take registers that a third program needs.
    for piece in tl.range(
        tl.program_id(0), tl.load(num_pieces), tl.num_programs(0), disable_licm=True
    ):
        tile, split = tl.load(piece_tiles + piece), tl.load(piece_indices + piece)
        length, start = tl.load(tile_lengths + tile), tl.load(tile_starts + tile)
        is_row = (i // GROUP < length) & (i < TILE // GROUP * GROUP)
        tokens = start + i // GROUP
        position = tl.load(positions + tokens, mask=is_row, other=-1)
        first, _, last = visible_range(position, is_row, WINDOW)
        begin, end = tl.zeros([], tl.int32), last // (_BLOCK * SPLIT) + 1  # of its pieces
        if WINDOW:
            begin += first // (_BLOCK * SPLIT)
        if (split >= begin) & (length > 0):  # the window may be past it
            is_own = is_row[:, None] & (d < WIDTH)[None]
            at = q + tokens[:, None].to(tl.int64) * q_stride + heads[:, None] * WIDTH + d[None]
            queries = tl.load(at, mask=is_own, other=0.0)
            if IS_NEW:
                if split == end - 1:
                    keys, own = q + start.to(tl.int64) * q_stride + HEADS * WIDTH, tl.arange(0, 1)
                    slot = tl.load(slots + start)
                    store_keys(
                        keys, kv, scales, last, slot, head + own, cos, sin, k_norm, eps,
                        HEADS // GROUP, WIDTH, PADDED // 2, IS_NORMED, IS_ROTATED, MOST,
                    )  # fmt: skip
                    store_values(
                        keys + HEADS // GROUP * WIDTH, kv, scales, slot, head + own, value_offset,
                        HEADS // GROUP, WIDTH, PADDED // 2, MOST,
                    )  # fmt: skip
                    tl.debug_barrier()  # all threads may read them
                queries = _turned(
                    queries, at, is_own, d, last, cos, sin, q_norm, eps,
                    WIDTH, IS_NORMED, IS_ROTATED,
                )  # fmt: skip
            largest, total, mixed = nothing_seen(TILE, PADDED)
            largest, total, mixed = attend_blocks(
                largest, total, mixed, queries, kv, scales,
                piece_blocks + (piece - split) * SPLIT, position, head,
                tl.maximum(split * SPLIT, first // _BLOCK),
                tl.minimum(split * SPLIT + SPLIT, last // _BLOCK + 1),
                first, last, value_offset, scale,
                HEADS // GROUP, WIDTH, PADDED, WINDOW, MOST > 0, False,
            )  # fmt: skip
            if begin + 1 == end:
                whole = mixed / tl.where(is_row, total, 1.0)[:, None]
                place = (tokens[:, None].to(tl.int64) * HEADS + heads[:, None]) * WIDTH + d[None]
                tl.store(out + place, whole.to(out.dtype.element_ty), mask=is_own)
            else:
                first_part = tl.load(first_parts + tile)
                own = (first_part + split * length + i // GROUP).to(tl.int64) * HEADS + heads
                tl.store(sums + 2 * own, largest, mask=is_row)
                tl.store(sums + 2 * own + 1, total, mask=is_row)
                tl.store(parts + own[:, None] * WIDTH + d[None], mixed, mask=is_own)
                _merge(
                    parts, sums, out, arrivals + (piece - split).to(tl.int64) * (HEADS // GROUP),
                    first_part, length, start, head, split, begin, end,
                    HEADS, GROUP, PADDED_GROUP, WIDTH, PADDED, MERGED,
                )  # fmt: skip


@triton.jit
def _turned(
    queries, at, is_own, d, position, cos, sin, norm, eps,
    WIDTH: tl.constexpr, IS_NORMED: tl.constexpr, IS_ROTATED: tl.constexpr,
):  # fmt: skip
    """Norm and rotate queries [TILE, PADDED] of one token, loaded from `at`."""
    HALF: tl.constexpr = WIDTH // 2
    is_low, is_high = d < HALF, (d >= HALF) & (d < WIDTH)
    x = queries.to(tl.float32)
    gain = 1.0
    if IS_NORMED:
        gain = (1.0 / tl.sqrt_rn(tl.sum(x * x, axis=1) / WIDTH + eps))[:, None]
        x *= gain * tl.load(norm + d, mask=d < WIDTH, other=0.0).to(tl.float32)[None]
        x = x.to(norm.dtype.element_ty).to(tl.float32)
    if IS_ROTATED:
        # The other half of each head; loads stay as wide as they are.
        other = tl.load(at + HALF, mask=is_own & is_low[None], other=0.0).to(tl.float32)
        other -= tl.load(at - HALF, mask=is_own & is_high[None], other=0.0).to(tl.float32)
        if IS_NORMED:
            own = tl.load(norm + HALF + d, mask=is_low, other=0.0).to(tl.float32)
            own += tl.load(norm - HALF + d, mask=is_high, other=0.0).to(tl.float32)
            other = (other * gain * own[None]).to(norm.dtype.element_ty).to(tl.float32)
        angle = position.to(tl.int64) * HALF + d
        c = tl.load(cos + angle, mask=is_low, other=0.0)
        c += tl.load(cos + angle - HALF, mask=is_high, other=0.0)
        s = tl.load(sin + angle, mask=is_low, other=0.0)
        s += tl.load(sin + angle - HALF, mask=is_high, other=0.0)
        x = x * c[None] - other * s[None]
    return x.to(queries.dtype)


@triton.jit
def _merge(
    parts, sums, out, arrivals, first_part, length, start, head, index, begin, end,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED_GROUP: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, MERGED: tl.constexpr,
):  # fmt: skip
    """Merge part `index` of a tile's [begin, end) with its neighbours, once all have arrived, and
    go on with what comes of it."""
    m, g, d = tl.arange(0, MERGED), tl.arange(0, PADDED_GROUP), tl.arange(0, PADDED)
    heads, is_own = head * GROUP + g, (g < GROUP)[:, None] & (d < WIDTH)[None]
    size = 1  # pieces of a part
    while begin + 1 < end:
        index //= MERGED
        part = index * MERGED + m
        is_part = (part >= begin) & (part < end)
        tl.debug_barrier()  # all threads have written theirs before one of them arrives
        before = tl.atomic_add(arrivals + index * (HEADS // GROUP) + head, 1, sem="acq_rel")
        if before + 1 == tl.sum(is_part.to(tl.int32)):
            tl.store(arrivals + index * (HEADS // GROUP) + head, 0)  # for the next launch
            begin, end = begin // MERGED, tl.cdiv(end, MERGED)
            for token in range(length):
                row = (first_part + part * size * length + token).to(tl.int64) * HEADS
                at, is_there = row[:, None] + heads[None], is_part[:, None] & (g < GROUP)[None]
                largest = tl.load(sums + 2 * at, mask=is_there, other=float("-inf"))
                totals = tl.load(sums + 2 * at + 1, mask=is_there, other=0.0)
                mixed = tl.load(
                    parts + at[:, :, None] * WIDTH + d[None, None],
                    mask=is_part[:, None, None] & is_own[None], other=0.0,
                )  # fmt: skip
                most = tl.max(largest, axis=0)
                # Of a tile's tokens the first may see none of these pieces.
                shares = tl.exp2(largest - tl.where(most == float("-inf"), 0.0, most)[None])
                total = tl.sum(totals * shares, axis=0)
                merged = tl.sum(mixed * shares[:, :, None], axis=0)
                if begin + 1 == end:
                    to = ((start + token).to(tl.int64) * HEADS + heads)[:, None] * WIDTH + d[None]
                    merged /= tl.where(g < GROUP, total, 1.0)[:, None]
                    tl.store(out + to, merged.to(out.dtype.element_ty), mask=is_own)
                else:
                    tl.debug_barrier()  # what is overwritten was read
                    first = first_part + index * MERGED * size * length + token
                    own = first.to(tl.int64) * HEADS + heads
                    tl.store(sums + 2 * own, most, mask=g < GROUP)
                    tl.store(sums + 2 * own + 1, total, mask=g < GROUP)
                    tl.store(parts + own[:, None] * WIDTH + d[None], merged, mask=is_own)
            arrivals += end * (HEADS // GROUP)  # of the next level
            size *= MERGED
        else:
            end = begin  # another one will merge them
