"""Decoder-only transformers in JAX: pure functions over a tree of weights, layers scanned.

Shapes below: B rows of n tokens (padded), M blocks of 64 slots per row. KV is one array
`[layer, k|v, block, kv_head, 64, head_dim]` that a compiled step takes, updates in place and gives
back (its buffer is donated). The last block is scratch: padding writes there, nothing reads it.

Everything runs under `shard_map` over a mesh with one axis, `MODEL_AXIS` (Megatron-LM, Shoeybi et
al., 2019): each device has some KV heads with all that belongs to them, and some of the
feed-forward network; what crosses are two sums in each layer. One device is the same program with
nothing to cross. Hk below is a device's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from skerry_core.config import BLOCK_SIZE, ModelConfig
from skerry_core.kernels.jax.jax_attention import (
    Attention,
    PaddedRows,
    attend,
    attend_in_place,
    capped,
    pieces_of_rows,
)
from skerry_core.kernels.jax.weights import (
    KV_SPEC,
    MODEL_AXIS,
    PARTITIONS,
    DecoderTree,
    LayerStack,
    Leaf,
)


class StepState(NamedTuple, Generic[Leaf]):
    """What a step changes. Its buffers are donated: it is updated in place."""

    kv: Leaf  # [L, k|v, N, Hk, 64, D]
    sampled: Leaf  # [S, hidden]  states of a step's samples, before the last norm


@partial(jax.jit, static_argnames=("config", "attention", "mesh"), donate_argnames="state")
def run_rows(
    config: ModelConfig,
    weights: DecoderTree[Array],
    state: StepState[Array],
    rows: PaddedRows[Array],
    made: Array,  # i32[S]  chosen by the step before; -1: no token was possible
    attention: Attention,
    mesh: Mesh,
) -> StepState[Array]:
    """Run tokens over the KV, to which theirs is added; keep the final states of samples."""
    spec = StepState(KV_SPEC, P())
    run: Callable[..., StepState[Array]] = jax.shard_map(
        partial(_run_rows, config, attention), mesh=mesh,
        in_specs=(PARTITIONS, spec, P(), P()), out_specs=spec, check_vma=False,
    )  # fmt: skip
    return run(weights, state, rows, made)


def _run_rows(
    config: ModelConfig,
    attention: Attention,
    weights: DecoderTree[Array],
    state: StepState[Array],
    rows: PaddedRows[Array],
    made: Array,
) -> StepState[Array]:
    """Execute `run_rows` on one of the devices.

    Layers read the cache as it was and attend to the step's own tokens beside it; what they add is
    written once, after the last layer. So the cache is never copied.
    """
    kv = state.kv
    # A sequence that has no possible token is over, but its row runs: with any token.
    fed = jnp.maximum(made[jnp.maximum(-1 - rows.token_ids, 0)], 0)
    token_ids = jnp.where(rows.token_ids < 0, fed, rows.token_ids)
    positions = rows.first[:, None] + jnp.arange(rows.token_ids.shape[1])
    inside = jnp.minimum(positions, config.max_context - 1)  # padding may lie beyond

    num_blocks = kv.shape[2] - 1
    pieces = None if attention == "xla" else pieces_of_rows(config, rows, num_blocks)

    def layer(x: Array, xs: tuple[Array, LayerStack[Array]]) -> tuple[Array, Array]:
        index, w = xs
        cos, sin = weights.cos[w.rope][inside], weights.sin[w.rope][inside]
        q, added = _projected(config, w, x, cos, sin)
        if attention == "xla":
            attended = attend(config, w.window, q, added, kv[index][:, rows.tables], rows)
        else:
            is_interpreted = attention == "pallas interpreted"
            attended = attend_in_place(
                config, w.window, q, added, kv, index, rows, pieces, is_interpreted
            )
        attended = attended.reshape(*x.shape[:2], -1) @ w.output
        x = x + _finished(config, attended, w.attention_post_norm)
        return x + _finished(config, _feed_forward(config, w, x), w.ffn_post_norm), added

    x = _times(_embedded(config, weights, token_ids), config.embedding_scale)
    x, added = jax.lax.scan(layer, x, (jnp.arange(config.num_layers), weights.layers))

    is_real = jnp.arange(positions.shape[1]) < rows.lengths[:, None]
    last = rows.tables.shape[1] - 1
    own = jnp.take_along_axis(rows.tables, jnp.minimum(positions // BLOCK_SIZE, last), axis=1)
    blocks = jnp.where(is_real, own, kv.shape[2] - 1)
    # Advanced indices come first in the result: [B, n, L, 2, Hk, D].
    added = added.transpose(2, 3, 0, 1, 4, 5)
    kv = kv.at[:, :, blocks, :, positions % BLOCK_SIZE].set(added)
    found = x.reshape(-1, x.shape[-1])[jnp.maximum(rows.samples, 0)]
    return StepState(kv, jnp.where((rows.samples < 0)[:, None], state.sampled, found))


@partial(jax.jit, static_argnames=("config", "count", "mesh"))
def logits(
    config: ModelConfig, weights: DecoderTree[Array], sampled: Array, count: int, mesh: Mesh
) -> Array:
    """Return f32[count, V] of the first of a step's samples, [S, hidden]; whole on every device."""
    normed = _rms_norm(sampled[:count], weights.final_norm, config.rms_norm_eps)
    found = jnp.einsum("sh,vh->sv", normed, weights.head, preferred_element_type=jnp.float32)
    found = jax.lax.with_sharding_constraint(found, NamedSharding(mesh, P()))
    found = found[:, : config.vocab_size]  # what devices have is padded
    return capped(_times(found, config.logit_scale), config.logit_cap)


@partial(jax.jit, static_argnames="mesh")
def read_block(kv: Array, block: int, mesh: Mesh) -> Array:
    """Return one block in canonical form, whole on every device: [layer, k|v, kv_head, 64,
    head_dim]."""
    return jax.lax.with_sharding_constraint(kv[:, :, block], NamedSharding(mesh, P()))


@partial(jax.jit, static_argnames="mesh", donate_argnames="kv")
def write_block(kv: Array, block: int, data: Array, mesh: Mesh) -> Array:
    """Return the KV with one block replaced."""
    written = kv.at[:, :, block].set(data)
    return jax.lax.with_sharding_constraint(written, NamedSharding(mesh, KV_SPEC))


def _embedded(config: ModelConfig, weights: DecoderTree[Array], token_ids: Array) -> Array:
    """Return rows of the embedding, [B, n, hidden], of which each device has some."""
    count = len(weights.embedding)
    if count == config.vocab_size:
        return weights.embedding[token_ids]
    rows = token_ids - jax.lax.axis_index(MODEL_AXIS) * count
    is_own = (rows >= 0) & (rows < count)
    found = weights.embedding[jnp.clip(rows, 0, count - 1)]
    return jax.lax.psum(jnp.where(is_own[..., None], found, 0), MODEL_AXIS)


def _projected(
    config: ModelConfig, w: LayerStack[Array], x: Array, cos: Array, sin: Array
) -> tuple[Array, Array]:
    """Project x [B, n, hidden]: queries [B, n, Hk, G, D], the step's own KV [2, B, n, Hk, D]."""
    normed = _before(config, x, w.attention_norm)
    projected = jnp.einsum("bnh,hkgd->bnkgd", normed, w.qkv) + w.qkv_bias
    q, k, v = jnp.split(projected, [projected.shape[3] - 2, projected.shape[3] - 1], axis=3)
    if config.qk_norm is not None:
        # All heads are on one device where they are normed together.
        over = -1 if config.qk_norm == "head" else (2, 3, 4)
        q = _rms_norm(q, w.q_norm, config.rms_norm_eps, over)
        k = _rms_norm(k, w.k_norm, config.rms_norm_eps, over)
    return _rotate(q, cos, sin), jnp.stack([_rotate(k, cos, sin), v])[..., 0, :]


def _feed_forward(config: ModelConfig, w: LayerStack[Array], x: Array) -> Array:
    normed = _before(config, x, w.ffn_norm)
    gate = normed @ w.gate
    gate = jax.nn.silu(gate) if config.activation == "silu" else jax.nn.gelu(gate, approximate=True)
    return (gate * (normed @ w.up)) @ w.down


def _times(x: Array, factor: float) -> Array:
    return x if factor == 1 else x * jnp.asarray(factor, x.dtype)


def _before(config: ModelConfig, x: Array, norm: Array) -> Array:
    """Return what a branch begins with."""
    return _rms_norm(x, norm, config.rms_norm_eps) if config.norms_before else x


def _finished(config: ModelConfig, branch: Array, norm: Array) -> Array:
    """Return what a branch adds to the hidden states, of each device's part of it."""
    whole = jax.lax.psum(branch, MODEL_AXIS)
    if config.norms_after:
        whole = _rms_norm(whole, norm, config.rms_norm_eps)
    return _times(whole, config.residual_scale)


def _rms_norm(x: Array, weight: Array, eps: float, over: int | tuple[int, ...] = -1) -> Array:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=over, keepdims=True) + eps)
    return (wide * scale * weight.astype(jnp.float32)).astype(x.dtype)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotate the first 2 k dimensions of [B, n, Hk, heads, D], halves against each other."""
    half = cos.shape[-1]
    first, second, rest = jnp.split(x.astype(jnp.float32), [half, 2 * half], axis=-1)
    cos, sin = cos[:, :, None, None], sin[:, :, None, None]
    rotated = [first * cos - second * sin, second * cos + first * sin, rest]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
