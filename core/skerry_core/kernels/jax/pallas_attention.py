"""Attention over a paged prefix in Pallas, for GPUs; in interpret mode on a CPU.

A program serves one row, one KV head and a tile of queries, and goes through the row's cached
blocks in order. It gives parts, not shares: the caller merges what a step's own tokens add, which
are not in the cache yet.
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

TILE = 64  # queries of a program, each token with all the heads of its group; a power of two


class AttentionPart(NamedTuple):
    """Attention over some keys, not yet divided: what parts are merged from."""

    mixed: Array  # f32[..., D]  values times shares
    largest: Array  # f32[...]   score; -inf where no key is seen
    total: Array  # f32[...]     of shares


def merge(first: AttentionPart, second: AttentionPart) -> Array:
    """Merge attention over the keys of both, f32[..., D]. Some key is seen."""
    largest = jnp.maximum(first.largest, second.largest)
    keep, add = jnp.exp(first.largest - largest), jnp.exp(second.largest - largest)
    mixed = first.mixed * keep[..., None] + second.mixed * add[..., None]
    return mixed / (first.total * keep + second.total * add)[..., None]


def attend_prefix(
    q: Array,  # [B, n, Hk, G, D]  queries, scaled
    kv: Array,  # [L, k|v, N, Hk, 64, D]
    layer: Array,  # i32[]
    first: Array,  # i32[B]        tokens in the cache, all of them before the row's queries
    tables: Array,  # i32[B, M]
    *,
    window: int | None,
    interpret: bool,
) -> AttentionPart:
    """Attend with each query to what of its row is cached: parts of [B, n, Hk, G]; 2^k = D."""
    rows, count, kv_heads, group, width = q.shape
    size = -(-count * group // TILE) * TILE
    flat = q.transpose(0, 2, 1, 3, 4).reshape(rows, kv_heads, count * group, width)
    flat = jnp.pad(flat, ((0, 0), (0, 0), (0, size - count * group), (0, 0)))

    def own(*tail: int) -> pl.BlockSpec:
        return pl.BlockSpec(
            (None, None, TILE, *tail), lambda b, h, t: (b, h, t, *(0 for _ in tail))
        )

    def whole(array: Array) -> pl.BlockSpec:
        return pl.BlockSpec(array.shape, lambda b, h, t: (0,) * array.ndim)

    at = layer.reshape(1)
    parts = pl.pallas_call(
        partial(_attend_prefix, group=group, window=window),
        grid=(rows, kv_heads, size // TILE),
        in_specs=[own(width), whole(at), whole(first), whole(tables), whole(kv)],
        out_specs=[own(width), own(), own()],
        out_shape=[
            jax.ShapeDtypeStruct(flat.shape, jnp.float32),
            jax.ShapeDtypeStruct(flat.shape[:3], jnp.float32),
            jax.ShapeDtypeStruct(flat.shape[:3], jnp.float32),
        ],
        compiler_params=plgpu.CompilerParams(num_warps=4),  # else JAX takes another compiler
        interpret=interpret,
    )(flat, at, first, tables, kv)

    def unflat(array: Array) -> Array:
        kept = array[:, :, : count * group].reshape(rows, kv_heads, count, group, *array.shape[3:])
        return kept.swapaxes(1, 2)

    return AttentionPart(*(unflat(part) for part in parts))


def _attend_prefix(
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
    queries, layer, first = q_ref[...], layer_ref[0], first_ref[row]
    token = (tile * TILE + jnp.arange(TILE)) // group
    position = first + token
    begin = jnp.int32(0)
    if window is not None:  # what the tile's first token does not see, none of it does
        begin = jnp.maximum(first + tile * TILE // group - window + 1, 0) // BLOCK_SIZE

    def block(index: Array, part: AttentionPart) -> AttentionPart:
        at = tables_ref[row, index]
        key = index * BLOCK_SIZE + jnp.arange(BLOCK_SIZE)
        is_cached = key < first  # an idle slot may hold anything, NaN included
        keys, values = (
            jnp.where(is_cached[:, None], kv_ref[layer, kind, at, head], 0) for kind in (0, 1)
        )
        scores = jnp.dot(queries, keys.T, preferred_element_type=jnp.float32)
        visible = jnp.broadcast_to(is_cached[None], scores.shape)
        if window is not None:
            visible &= key[None] > position[:, None] - window
        scores = jnp.where(visible, scores, -jnp.inf)
        largest = jnp.maximum(part.largest, scores.max(axis=1))
        finite = jnp.where(largest == -jnp.inf, 0.0, largest)
        shares = jnp.exp(scores - finite[:, None])
        keep = jnp.exp(part.largest - finite)
        added = jnp.dot(shares.astype(values.dtype), values, preferred_element_type=jnp.float32)
        return AttentionPart(
            part.mixed * keep[:, None] + added, largest, part.total * keep + shares.sum(axis=1)
        )

    start = AttentionPart(
        jnp.zeros(queries.shape, jnp.float32),
        jnp.full((TILE,), -jnp.inf, jnp.float32),
        jnp.zeros((TILE,), jnp.float32),
    )
    end = (first + BLOCK_SIZE - 1) // BLOCK_SIZE
    part = jax.lax.fori_loop(begin, end, block, start)
    mixed_ref[...], largest_ref[...], total_ref[...] = part
