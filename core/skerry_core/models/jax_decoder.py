"""Decoder-only transformers in JAX: pure functions over a tree of weights, layers scanned.

Shapes below: B rows of n tokens (padded), M blocks of 64 slots per row. KV is one array
`[layer, k|v, block, kv_head, 64, head_dim]` that a compiled step takes, updates in place and gives
back (its buffer is donated). The last block is scratch: padding writes there, nobody reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from skerry_core.config import BLOCK_SIZE, ModelConfig
from skerry_core.kernels.rope import rope_frequencies


class Layers(NamedTuple):
    """Weights of all layers, stacked on axis 0 (L). Products are [in, out]."""

    attention_norm: Array  # [L, hidden]
    qkv: Array  # [L, hidden, (H + 2 * Hk) * D]
    qkv_bias: Array  # [L, (H + 2 * Hk) * D]; zeros when the model has none
    q_norm: Array  # [L, D]; used with `qk_norm` only
    k_norm: Array  # [L, D]
    output: Array  # [L, H * D, hidden]
    ffn_norm: Array  # [L, hidden]
    gate: Array  # [L, hidden, intermediate]
    up: Array  # [L, hidden, intermediate]
    down: Array  # [L, intermediate, hidden]


class Weights(NamedTuple):
    embedding: Array  # [V, hidden]
    layers: Layers
    final_norm: Array  # [hidden]
    head: Array  # [V, hidden]
    cos: Array  # f32[max_context, D / 2]
    sin: Array  # f32[max_context, D / 2]


def assemble(
    config: ModelConfig, tensors: Mapping[str, NDArray[np.float32]], dtype: Any
) -> Weights:
    """Arrange named tensors (GGUF's names, halves-rotating Q and K). Raises KeyError."""
    layers = range(config.num_layers)

    def stacked(name: str, *, transpose: bool = False) -> Array:
        each = [tensors[f"blk.{i}.{name}"] for i in layers]
        return jnp.asarray(np.stack([a.T for a in each] if transpose else each), dtype)

    def qkv(kind: str) -> NDArray[np.float32]:
        parts = [
            np.concatenate([tensors[f"blk.{i}.attn_{p}.{kind}"] for p in "qkv"]) for i in layers
        ]
        return np.stack(parts)

    width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    no_bias = np.zeros((config.num_layers, width), np.float32)
    no_norm = jnp.ones((config.num_layers, config.head_dim), dtype)
    positions = np.arange(config.max_context, dtype=np.float64)
    angles = positions[:, None] * rope_frequencies(config)
    embedding = jnp.asarray(tensors["token_embd.weight"], dtype)
    return Weights(
        embedding=embedding,
        layers=Layers(
            attention_norm=stacked("attn_norm.weight"),
            qkv=jnp.asarray(qkv("weight").transpose(0, 2, 1), dtype),
            qkv_bias=jnp.asarray(qkv("bias") if config.attention_bias else no_bias, dtype),
            q_norm=stacked("attn_q_norm.weight") if config.qk_norm else no_norm,
            k_norm=stacked("attn_k_norm.weight") if config.qk_norm else no_norm,
            output=stacked("attn_output.weight", transpose=True),
            ffn_norm=stacked("ffn_norm.weight"),
            gate=stacked("ffn_gate.weight", transpose=True),
            up=stacked("ffn_up.weight", transpose=True),
            down=stacked("ffn_down.weight", transpose=True),
        ),
        final_norm=jnp.asarray(tensors["output_norm.weight"], dtype),
        head=embedding if config.tied_embeddings else jnp.asarray(tensors["output.weight"], dtype),
        cos=jnp.asarray(np.cos(angles), jnp.float32),
        sin=jnp.asarray(np.sin(angles), jnp.float32),
    )


class Placement(NamedTuple):
    """Where the tokens of a step belong. Padding has its slot in the scratch block."""

    token_ids: Array  # i32[B, n]
    positions: Array  # i32[B, n]
    write_blocks: Array  # i32[B, n]
    tables: Array  # i32[B, M]
    last: Array  # i32[B, k]   tokens of each row whose logits are wanted


@partial(jax.jit, static_argnames="config", donate_argnames="kv")
def step(config: ModelConfig, weights: Weights, kv: Array, place: Placement) -> tuple[Array, Array]:
    """Run B rows of n tokens: logits f32[B, k, V] at `place.last`, and the updated KV.

    Layers read the cache as it was and attend to the step's own tokens beside it; what they add is
    written once, after the last layer. So the cache is never copied.
    """
    x = weights.embedding[place.token_ids]
    cos, sin = weights.cos[place.positions], weights.sin[place.positions]

    def layer(x: Array, xs: tuple[Array, Layers]) -> tuple[Array, Array]:
        index, w = xs
        cached = jnp.stack([kv[index, 0, place.tables], kv[index, 1, place.tables]])
        attended, added = _attention(config, w, x, cached, place, cos, sin)
        x = x + attended
        return x + _feed_forward(config, w, x), added

    indices = jnp.arange(config.num_layers)
    x, added = jax.lax.scan(layer, x, (indices, weights.layers))
    slots = place.positions % BLOCK_SIZE
    # Advanced indices come first in the result: [B, n, L, 2, Hk, D].
    kv = kv.at[:, :, place.write_blocks, :, slots].set(added.transpose(2, 3, 0, 1, 4, 5))
    wanted = jnp.take_along_axis(x, place.last[:, :, None], axis=1)
    normed = _rms_norm(wanted, weights.final_norm, config.rms_norm_eps)
    return (normed @ weights.head.T).astype(jnp.float32), kv


def _attention(
    config: ModelConfig, w: Layers, x: Array, cached: Array, place: Placement, cos: Array,
    sin: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """Attend to the rows' contexts: [B, n, hidden], and the step's own KV [2, B, n, Hk, D].

    `cached` is [k|v, B, M, Hk, 64, D]: positions from 0 on, of which those before the row's first
    token count.
    """
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
    rows, count = place.token_ids.shape
    projected = _rms_norm(x, w.attention_norm, config.rms_norm_eps) @ w.qkv + w.qkv_bias
    split = projected.reshape(rows, count, heads + 2 * kv_heads, width)
    q, k, v = jnp.split(split, [heads, heads + kv_heads], axis=2)
    if config.qk_norm:
        q = _rms_norm(q, w.q_norm, config.rms_norm_eps)
        k = _rms_norm(k, w.k_norm, config.rms_norm_eps)
    q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    added = jnp.stack([k, v]).astype(cached.dtype)
    own_keys, own_values = added.transpose(0, 1, 3, 2, 4)  # [B, Hk, n, D]
    keys = jnp.concatenate([_gathered(cached[0]), own_keys], axis=2)
    values = jnp.concatenate([_gathered(cached[1]), own_values], axis=2)

    grouped = q.reshape(rows, count, kv_heads, heads // kv_heads, width)
    scores = jnp.einsum("bnkgd,bksd->bkgns", grouped, keys, preferred_element_type=jnp.float32)
    visible = _visible(config, place, num_cached=keys.shape[2] - count)
    masked = jnp.where(visible[:, None, None], scores * width**-0.5, -jnp.inf)
    shares = jax.nn.softmax(masked, axis=-1).astype(values.dtype)
    attended = jnp.einsum("bkgns,bksd->bnkgd", shares, values)
    return attended.reshape(rows, count, heads * width).astype(x.dtype) @ w.output, added


def _visible(config: ModelConfig, place: Placement, num_cached: int) -> Array:
    """Which of the cached and of the step's own tokens each token sees: bool[B, n, cached + n]."""
    rows, count = place.token_ids.shape
    first = place.positions[:, :1]
    cached = jnp.broadcast_to(jnp.arange(num_cached), (rows, num_cached))
    own = first + jnp.arange(count)
    at = first + jnp.arange(count)  # positions, padding counted on
    key_positions = jnp.concatenate([cached, own], axis=1)[:, None]
    is_real = jnp.concatenate([cached < first, jnp.ones_like(own, bool)], axis=1)[:, None]
    visible = is_real & (key_positions <= at[:, :, None])
    if config.sliding_window is not None:
        visible &= key_positions > at[:, :, None] - config.sliding_window
    return visible


def _gathered(blocks: Array) -> Array:
    """Blocks of each row side by side: [B, M, Hk, 64, D] → [B, Hk, M * 64, D]."""
    rows, count, heads, size, width = blocks.shape
    return blocks.transpose(0, 2, 1, 3, 4).reshape(rows, heads, count * size, width)


def _feed_forward(config: ModelConfig, w: Layers, x: Array) -> Array:
    normed = _rms_norm(x, w.ffn_norm, config.rms_norm_eps)
    return (jax.nn.silu(normed @ w.gate) * (normed @ w.up)) @ w.down


def _rms_norm(x: Array, weight: Array, eps: float) -> Array:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale * weight).astype(x.dtype)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary embedding of [B, n, heads, D], halves rotated."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None], sin[:, :, None]
    rotated = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
