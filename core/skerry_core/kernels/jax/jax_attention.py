"""Attention of a step's tokens in JAX: to what their rows have cached, and to each other.

Shapes as in `decoder`: B rows of n tokens, G queries for each of Hk KV heads.
"""

from __future__ import annotations

from typing import Generic, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from skerry_core.config import ModelConfig
from skerry_core.kernels.jax.pallas_attention import attend_prefix
from skerry_core.kernels.jax.pallas_blocks import AttentionPart, merge
from skerry_core.kernels.jax.pallas_split import SplitContexts, is_split, pieces_of
from skerry_core.kernels.jax.weights import Leaf


class PaddedRows(NamedTuple, Generic[Leaf]):
    """Consecutive tokens of B sequences. What lies beyond a row's length is padding."""

    token_ids: Leaf  # i32[B, n]  -1 - s: what sample s of the step before chose
    first: Leaf  # i32[B]      position of the row's first token
    lengths: Leaf  # i32[B]    tokens that count, 0 to n
    tables: Leaf  # i32[B, M]  the row's blocks
    samples: Leaf  # i32[S]    where in [B * n] a sample of the step is; -1: in another call


Attention = Literal["xla", "pallas", "pallas interpreted"]
"""How what is cached is attended to: gathered and by XLA's own products, or in place."""


def pieces_of_rows(
    config: ModelConfig, rows: PaddedRows[Array], num_blocks: int
) -> SplitContexts | None:
    """Return the pieces of contexts that rows attend to in place, of a KV of so many blocks; None
    where each attends to all of its own at once."""
    if not is_split(rows.token_ids.shape[1], config.num_heads // config.num_kv_heads):
        return None
    return pieces_of(rows.first, rows.tables, config.layers[0].window, num_blocks)


def attend(
    config: ModelConfig,
    window: Array,  # i32[]
    q: Array,  # [B, n, Hk, G, D]
    added: Array,  # [k|v, B, n, Hk, D]     the step's own
    cached: Array,  # [k|v, B, M, Hk, 64, D], of which what is before the row's first token counts
    rows: PaddedRows[Array],
) -> Array:  # [B, n, Hk, G, D]
    """Attend with each token to its row's context, the cached blocks gathered before."""
    own_keys, own_values = added.transpose(0, 1, 3, 2, 4)  # [B, Hk, n, D]
    old_keys, old_values = _gathered(cached[0]), _gathered(cached[1])  # [B, Hk, M * 64, D]
    num_cached = old_keys.shape[2]
    # An idle slot may hold anything, and a share of zero does not hide a NaN.
    is_cached = jnp.arange(num_cached) < rows.first[:, None]
    old_values = jnp.where(is_cached[:, None, :, None], old_values, 0)
    keys = jnp.concatenate([old_keys, own_keys], axis=2)
    values = jnp.concatenate([old_values, own_values], axis=2)

    scores = jnp.einsum("bnkgd,bksd->bkgns", q, keys, preferred_element_type=jnp.float32)
    visible = _visible(window, rows, num_cached)
    scores = capped(scores * _scale(config), config.score_cap)
    masked = jnp.where(visible[:, None, None], scores, -jnp.inf)
    shares = jax.nn.softmax(masked, axis=-1).astype(values.dtype)
    return jnp.einsum("bkgns,bksd->bnkgd", shares, values)


def attend_in_place(
    config: ModelConfig,
    window: Array,  # i32[]
    q: Array,  # [B, n, Hk, G, D]
    added: Array,  # [k|v, B, n, Hk, D]
    kv: Array,  # [L, k|v, N, Hk, 64, D]
    layer: Array,  # i32[]
    rows: PaddedRows[Array],
    pieces: SplitContexts | None,
    is_interpreted: bool,
) -> Array:  # [B, n, Hk, G, D]
    """Attend as `attend` does, by a kernel that reads blocks where they lie."""
    scaled = q * jnp.asarray(_scale(config), q.dtype)
    cached = attend_prefix(
        scaled, kv, layer, rows.first, rows.tables, window=config.layers[0].window,
        interpret=is_interpreted, pieces=pieces,
    )  # fmt: skip
    scores = jnp.einsum("bnkgd,bskd->bnkgs", scaled, added[0], preferred_element_type=jnp.float32)
    visible = _visible(window, rows, 0)[:, :, None, None]  # [B, n, 1, 1, n]
    masked = jnp.where(visible, scores, -jnp.inf)
    largest = masked.max(axis=-1)  # finite: a token sees itself
    shares = jnp.exp(masked - largest[..., None])
    mixed = jnp.einsum(
        "bnkgs,bskd->bnkgd", shares.astype(q.dtype), added[1], preferred_element_type=jnp.float32
    )
    return merge(cached, AttentionPart(mixed, largest, shares.sum(axis=-1))).astype(q.dtype)


def _visible(window: Array, rows: PaddedRows[Array], num_cached: int) -> Array:
    """Return which of the cached and of the step's own tokens each token sees: bool[B, n, cached +
    n]."""
    num_rows, count = rows.token_ids.shape
    first = rows.first[:, None]
    cached = jnp.broadcast_to(jnp.arange(num_cached), (num_rows, num_cached))
    own = first + jnp.arange(count)
    is_real = jnp.concatenate([cached < first, jnp.ones_like(own, bool)], axis=1)[:, None]
    keys = jnp.concatenate([cached, own], axis=1)[:, None]
    queries = own[:, :, None]
    return is_real & (keys <= queries) & (keys > queries - window)


def _gathered(blocks: Array) -> Array:
    """Put the blocks of each row side by side: [B, M, Hk, 64, D] → [B, Hk, M * 64, D]."""
    rows, count, heads, size, width = blocks.shape
    return blocks.transpose(0, 2, 1, 3, 4).reshape(rows, heads, count * size, width)


def _scale(config: ModelConfig) -> float:
    return config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale


def capped(x: Array, cap: float | None) -> Array:
    """Compute `cap * tanh(x / cap)`; x itself without a cap."""
    return x if cap is None else cap * jnp.tanh(x / cap)
