"""Attention over a paged prefix in Pallas, for GPUs; in interpret mode on a CPU.

A program serves one KV head and a tile of queries of one row, and goes through cached blocks in
order. It gives parts, not shares: the caller merges what a step's own tokens add, which are not in
the cache yet. One token of a row attends as `pallas_split` does, several to their whole context.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.jax.pallas_blocks import (
    AttentionPart,
    attend_blocks,
    call,
    own_block,
    part_shapes,
    whole,
)
from skerry_core.kernels.jax.pallas_split import SPLIT_TILE, SplitContexts, attend_split

TILE = 64  # queries of a program, each token with all the heads of its group; a power of two


def attend_prefix(
    q: Array,  # [B, n, Hk, G, D]  queries, scaled
    kv: Array,  # [L, k|v, N, Hk, 64, D]
    layer: Array,  # i32[]
    first: Array,  # i32[B]        tokens in the cache, all of them before the row's queries
    tables: Array,  # i32[B, M]
    *,
    window: int | None,
    interpret: bool,
    pieces: SplitContexts | None = None,
) -> AttentionPart[Array]:
    """Attend with each query to what of its row is cached: parts of [B, n, Hk, G]; 2^k = D.

    With all pieces of the rows' contexts n is 1, and G at most `SPLIT_TILE`.
    """
    rows, count, kv_heads, group, width = q.shape
    tile = TILE if pieces is None else SPLIT_TILE
    size = -(-count * group // tile) * tile
    flat = q.transpose(0, 2, 1, 3, 4).reshape(rows, kv_heads, count * group, width)
    flat = jnp.pad(flat, ((0, 0), (0, 0), (0, size - count * group), (0, 0)))
    inputs = flat, kv, layer.reshape(1), first, tables
    if pieces is None:
        parts = _attend_whole(*inputs, group, window, interpret)
    else:
        parts = attend_split(*inputs, pieces, group, window, interpret)

    def unflat(array: Array) -> Array:
        kept = array[:, :, : count * group].reshape(rows, kv_heads, count, group, *array.shape[3:])
        return kept.swapaxes(1, 2)

    return AttentionPart(*(unflat(part) for part in parts))


def _attend_whole(
    q: Array,  # [B, Hk, tiles * TILE, D]
    kv: Array,
    layer: Array,  # i32[1]
    first: Array,
    tables: Array,
    group: int,
    window: int | None,
    interpret: bool,
) -> AttentionPart[Array]:
    """Attend tile by tile, each to its whole context: parts of [B, Hk, tiles * TILE]."""
    rows, kv_heads, size, _ = q.shape
    by_tile = [own_block(None, None, TILE, *tail) for tail in (q.shape[3:], (), ())]
    attended: AttentionPart[Array] = call(
        partial(_attend_tile, group=group, window=window),
        grid=(rows, kv_heads, size // TILE),
        in_specs=[by_tile[0], *map(whole, (layer, first, tables, kv))],
        out_specs=AttentionPart(*by_tile),
        out_shape=part_shapes(q.shape),
        interpret=interpret,
    )(q, layer, first, tables, kv)
    return attended


def _attend_tile(
    q_ref: Any,  # [TILE, D]
    layer_ref: Any,  # i32[1]
    first_ref: Any,  # i32[B]
    tables_ref: Any,  # i32[B, M]
    kv_ref: Any,  # [L, k|v, N, Hk, 64, D]
    mixed_ref: Any,  # f32[TILE, D]
    largest_ref: Any,  # f32[TILE]
    total_ref: Any,  # f32[TILE]
    *,
    group: int,
    window: int | None,
) -> None:
    row, head, tile = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    first = first_ref[row]
    begin = jnp.int32(0)
    if window is not None:  # what the tile's first token does not see, none of it does
        begin = jnp.maximum(first + tile * TILE // group - window + 1, 0) // BLOCK_SIZE
    position = first + (tile * TILE + jnp.arange(TILE)) // group
    mixed_ref[...], largest_ref[...], total_ref[...] = attend_blocks(
        q_ref[...], kv_ref, tables_ref, (layer_ref[0], row, head), position, first, begin,
        (first + BLOCK_SIZE - 1) // BLOCK_SIZE, window,
    )  # fmt: skip
