"""Decoding's attention in Pallas: a context in pieces of 256 tokens, merged in their order.

So one long context fills the device, and costs what its own pieces do, not as many for every row:
programs go through a list of all pieces, which has room for those of all blocks of KV and one more
of each row (`most_pieces`). Rows that share blocks may have more in all: they go in several calls.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.jax.pallas_blocks import (
    AttentionPart,
    attend_blocks,
    call,
    no_part,
    own_block,
    part_shapes,
    whole,
)

SPLIT_TILE = 16  # rows of a tile: the least that tensor cores take
PIECE_BLOCKS = 4  # blocks per piece of a context: 256 tokens
_PROGRAMS = 512  # about as many as a device runs at a time: an empty one is not free


class SplitContexts(NamedTuple):
    """Every piece of what B rows have cached, row after row, each row's in order."""

    rows: Array  # i32[n]     whose it is, of the first `num_pieces`
    indices: Array  # i32[n]  which of its context
    starts: Array  # i32[B]   its first piece
    ends: Array  # i32[B]
    num_pieces: Array  # i32[1]


def is_split(count: int, group: int) -> bool:
    """Return whether rows of so many tokens, a KV head serving `group` queries, are a tile each."""
    return count == 1 and group <= SPLIT_TILE


def most_pieces(rows: int, num_blocks: int) -> int:
    """Return how many pieces so many rows have at most that share no block of KV."""
    return rows + num_blocks // PIECE_BLOCKS


def pieces_of(first: Array, tables: Array, window: int | None, num_blocks: int) -> SplitContexts:
    """Return the pieces that tokens i32[B], which follow so many cached ones, see of their rows: at
    most `most_pieces` of a KV of so many blocks."""
    size = PIECE_BLOCKS * BLOCK_SIZE
    begin = jnp.zeros_like(first)
    if window is not None:
        begin = jnp.maximum(first - window + 1, 0) // size
    ends = jnp.cumsum(jnp.maximum(-(-first // size) - begin, 0)).astype(jnp.int32)
    starts = jnp.concatenate([jnp.zeros(1, jnp.int32), ends[:-1]])
    longest = len(first) * -(-tables.shape[1] // PIECE_BLOCKS)
    each = jnp.arange(min(longest, most_pieces(len(first), num_blocks)), dtype=jnp.int32)
    owners = jnp.minimum(jnp.searchsorted(ends, each, side="right"), len(first) - 1)
    indices = each - starts[owners] + begin[owners]
    return SplitContexts(owners.astype(jnp.int32), indices, starts, ends, ends[-1:])


def attend_split(
    q: Array,  # [B, Hk, SPLIT_TILE, D]
    kv: Array,
    layer: Array,  # i32[1]
    first: Array,
    tables: Array,
    pieces: SplitContexts,
    group: int,
    window: int | None,
    interpret: bool,
) -> AttentionPart[Array]:
    """Attend with one token of each row, whose G queries are in a tile: parts of [B, Hk,
    SPLIT_TILE]."""
    rows, kv_heads, _, width = q.shape
    most = len(pieces.rows)
    inputs = q, layer, first, tables, *pieces, kv
    split = part_shapes((most, kv_heads, group, width))
    attended: AttentionPart[Array] = call(
        partial(_attend_pieces, group=group, window=window),
        grid=(min(most, max(_PROGRAMS // kv_heads, 1)), kv_heads),
        in_specs=list(map(whole, inputs)),
        out_specs=AttentionPart(*map(whole, split)),
        out_shape=split,
        interpret=interpret,
    )(*inputs)
    parts = pieces.starts, pieces.ends, *attended
    own = own_block(None, None, SPLIT_TILE)
    merged: AttentionPart[Array] = call(
        partial(_merge_pieces, group=group),
        grid=(rows, kv_heads),
        in_specs=list(map(whole, parts)),
        out_specs=AttentionPart(own_block(None, None, SPLIT_TILE, width), own, own),
        out_shape=part_shapes(q.shape),
        interpret=interpret,
    )(*parts)
    return merged


def _attend_pieces(
    q_ref: Any,  # [B, Hk, SPLIT_TILE, D]
    layer_ref: Any,  # i32[1]
    first_ref: Any,  # i32[B]
    tables_ref: Any,  # i32[B, M]
    rows_ref: Any,  # i32[n]
    indices_ref: Any,  # i32[n]
    starts_ref: Any,  # i32[B]
    ends_ref: Any,  # i32[B]
    count_ref: Any,  # i32[1]
    kv_ref: Any,  # [L, k|v, N, Hk, 64, D]
    mixed_ref: Any,  # f32[n, Hk, G, D]
    largest_ref: Any,  # f32[n, Hk, G]
    total_ref: Any,  # f32[n, Hk, G]
    *,
    group: int,
    window: int | None,
) -> None:
    """Attend to every so many-th piece, of one token for each row."""
    program, programs, head = pl.program_id(0), pl.num_programs(0), pl.program_id(1)
    tile = jnp.arange(SPLIT_TILE)

    def attend(turn: Array, _: None) -> None:
        piece = program + turn * programs
        row = rows_ref[piece]
        first, begin = first_ref[row], indices_ref[piece] * PIECE_BLOCKS
        end = jnp.minimum(begin + PIECE_BLOCKS, (first + BLOCK_SIZE - 1) // BLOCK_SIZE)
        if window is not None:
            begin = jnp.maximum(begin, jnp.maximum(first - window + 1, 0) // BLOCK_SIZE)
        position = jnp.broadcast_to(first, (SPLIT_TILE,))
        part = attend_blocks(
            q_ref[row, head], kv_ref, tables_ref, (layer_ref[0], row, head), position, first,
            begin, end, window,
        )  # fmt: skip
        at, is_query = (piece, head, pl.ds(0, SPLIT_TILE)), tile < group
        wide = jnp.broadcast_to(is_query[:, None], part.mixed.shape)
        plgpu.store(mixed_ref.at[*at, slice(None)], part.mixed, mask=wide)
        plgpu.store(largest_ref.at[at], part.largest, mask=is_query)
        plgpu.store(total_ref.at[at], part.total, mask=is_query)

    turns = jnp.maximum((count_ref[0] - program + programs - 1) // programs, 0)
    jax.lax.fori_loop(0, turns, attend, None)


def _merge_pieces(
    starts_ref: Any,  # i32[B]
    ends_ref: Any,  # i32[B]
    mixed_ref: Any,  # f32[n, Hk, G, D]
    largest_ref: Any,  # f32[n, Hk, G]
    total_ref: Any,  # f32[n, Hk, G]
    merged_ref: Any,  # f32[SPLIT_TILE, D]
    merged_largest_ref: Any,  # f32[SPLIT_TILE]
    merged_total_ref: Any,  # f32[SPLIT_TILE]
    *,
    group: int,
) -> None:
    """Merge a row's pieces in their order."""
    row, head = pl.program_id(0), pl.program_id(1)
    is_query = jnp.arange(SPLIT_TILE) < group
    wide = jnp.broadcast_to(is_query[:, None], merged_ref.shape)

    def add(piece: Array, part: AttentionPart[Array]) -> AttentionPart[Array]:
        at = (piece, head, pl.ds(0, SPLIT_TILE))
        mixed = plgpu.load(mixed_ref.at[*at, slice(None)], mask=wide, other=0.0)
        own = plgpu.load(largest_ref.at[at], mask=is_query, other=-jnp.inf)
        total = plgpu.load(total_ref.at[at], mask=is_query, other=0.0)
        largest = jnp.maximum(part.largest, own)
        finite = jnp.where(largest == -jnp.inf, 0.0, largest)
        keep, share = jnp.exp(part.largest - finite), jnp.exp(own - finite)
        return AttentionPart(
            part.mixed * keep[:, None] + mixed * share[:, None],
            largest,
            part.total * keep + total * share,
        )

    merged_ref[...], merged_largest_ref[...], merged_total_ref[...] = jax.lax.fori_loop(
        starts_ref[row], ends_ref[row], add, no_part(merged_ref.shape)
    )
