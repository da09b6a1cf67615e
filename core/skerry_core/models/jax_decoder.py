"""Decoder-only transformers in JAX: pure functions over a tree of weights, layers scanned.

Shapes below: B rows of n tokens (padded), M blocks of 64 slots per row. KV is one array
`[layer, k|v, block, kv_head, 64, head_dim]` that a compiled step takes, updates in place and gives
back (its buffer is donated). The last block is scratch: padding writes there, nobody reads it.

Everything runs under `shard_map` over a mesh with one axis, `MODEL_AXIS` (Megatron-LM, Shoeybi et
al., 2019): each device has some KV heads with all that belongs to them, and some of the
feed-forward network; what crosses are two sums in each layer. One device is the same program with
nothing to cross. Hk below is a device's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from skerry_core.config import BLOCK_SIZE, ConfigError, ModelConfig
from skerry_core.kernels.jax.pallas_attention import Part, attend_prefix, merge
from skerry_core.kernels.rope import rope_frequencies

MODEL_AXIS = "model"
KV_SPEC = P(None, None, None, MODEL_AXIS)  # of `[layer, k|v, block, kv_head, 64, head_dim]`
BLOCK_SPEC = P(None, None, MODEL_AXIS)  # of one block of it
Leaf = TypeVar("Leaf")


class Layers(NamedTuple, Generic[Leaf]):
    """Weights of all layers, stacked on axis 0 (L). Products are [in, out]."""

    attention_norm: Leaf  # [L, hidden]
    qkv: Leaf  # [L, hidden, Hk, G + 2, D]; of each KV head its queries, its key, its value
    qkv_bias: Leaf  # [L, Hk, G + 2, D]; zeros when the model has none
    q_norm: Leaf  # [L, D]; used with `qk_norm` only
    k_norm: Leaf  # [L, D]
    output: Leaf  # [L, H * D, hidden]
    ffn_norm: Leaf  # [L, hidden]
    gate: Leaf  # [L, hidden, intermediate]
    up: Leaf  # [L, hidden, intermediate]
    down: Leaf  # [L, intermediate, hidden]


class Weights(NamedTuple, Generic[Leaf]):
    embedding: Leaf  # [V, hidden]
    layers: Layers[Leaf]
    final_norm: Leaf  # [hidden]
    head: Leaf  # [V, hidden]
    cos: Leaf  # f32[max_context, D / 2]
    sin: Leaf  # f32[max_context, D / 2]


def partitions(config: ModelConfig, mesh: Mesh) -> Weights[P]:
    """How each weight is divided over the mesh. Raises ConfigError where it cannot be.

    A vocabulary that cannot be divided is multiplied by whole on every device.
    """
    devices = mesh.shape[MODEL_AXIS]
    for name in ("num_kv_heads", "intermediate_size"):
        if getattr(config, name) % devices:
            size = getattr(config, name)
            raise ConfigError(f"{name} ({size}) must be a multiple of the devices ({devices})")
    return Weights(
        embedding=P(),
        layers=Layers(
            attention_norm=P(), qkv=P(None, None, MODEL_AXIS), qkv_bias=P(None, MODEL_AXIS),
            q_norm=P(), k_norm=P(), output=P(None, MODEL_AXIS), ffn_norm=P(),
            gate=P(None, None, MODEL_AXIS), up=P(None, None, MODEL_AXIS), down=P(None, MODEL_AXIS),
        ),
        final_norm=P(), head=P() if config.vocab_size % devices else P(MODEL_AXIS), cos=P(),
        sin=P(),
    )  # fmt: skip


def assemble(
    config: ModelConfig, tensors: Mapping[str, NDArray[Any]], mesh: Mesh
) -> Weights[Array]:
    """Arrange named tensors (GGUF's names, halves-rotating Q and K), all of one dtype.

    Raises KeyError with the missing tensor's name, and what `partitions` raises.
    """
    layers = range(config.num_layers)

    def stacked(name: str, *, transpose: bool = False) -> NDArray[Any]:
        each = [tensors[f"blk.{i}.{name}"] for i in layers]
        return np.stack([a.T for a in each] if transpose else each)

    def by_head(part: str) -> NDArray[Any]:
        """[L, Hk, heads, D, ...] of the rows of Q, K or V."""
        rows = stacked(f"attn_{part}")
        shape = (config.num_layers, config.num_kv_heads, -1, config.head_dim, *rows.shape[2:])
        return rows.reshape(shape)

    def qkv(kind: str) -> NDArray[Any]:
        return np.concatenate([by_head(f"{part}.{kind}") for part in "qkv"], axis=2)

    embedding = tensors["token_embd.weight"]
    weight = qkv("weight").transpose(0, 4, 1, 2, 3)
    no_bias = np.zeros((config.num_layers, *weight.shape[2:]), embedding.dtype)
    no_norm = np.ones((config.num_layers, config.head_dim), embedding.dtype)
    angles = np.arange(config.max_context)[:, None] * rope_frequencies(config)
    whole = Weights(
        embedding=embedding,
        layers=Layers(
            attention_norm=stacked("attn_norm.weight"),
            qkv=weight,
            qkv_bias=qkv("bias") if config.attention_bias else no_bias,
            q_norm=stacked("attn_q_norm.weight") if config.qk_norm else no_norm,
            k_norm=stacked("attn_k_norm.weight") if config.qk_norm else no_norm,
            output=stacked("attn_output.weight", transpose=True),
            ffn_norm=stacked("ffn_norm.weight"),
            gate=stacked("ffn_gate.weight", transpose=True),
            up=stacked("ffn_up.weight", transpose=True),
            down=stacked("ffn_down.weight", transpose=True),
        ),
        final_norm=tensors["output_norm.weight"],
        head=embedding if config.tied_embeddings else tensors["output.weight"],
        cos=np.cos(angles).astype(np.float32),
        sin=np.sin(angles).astype(np.float32),
    )
    specs = partitions(config, mesh)
    placed: Weights[Array] = jax.tree.map(
        lambda array, spec: place(array, mesh, spec), whole, specs
    )
    shares_head = config.tied_embeddings and specs.head == specs.embedding
    return placed._replace(head=placed.embedding) if shares_head else placed


def place(array: NDArray[Any], mesh: Mesh, spec: P) -> Array:
    """An array on the devices of a mesh."""
    return jax.device_put(array, NamedSharding(mesh, spec), may_alias=False)


class Rows(NamedTuple):
    """Consecutive tokens of B sequences. What lies beyond a row's length is padding."""

    token_ids: Array  # i32[B, n]
    first: Array  # i32[B]      position of the row's first token
    lengths: Array  # i32[B]    tokens that count, 0 to n
    tables: Array  # i32[B, M]  the row's blocks


Attention = Literal["xla", "pallas", "pallas interpreted"]
"""How what is cached is attended to: gathered and by XLA's own products, or in place."""


@partial(jax.jit, static_argnames=("config", "attention", "mesh"), donate_argnames="kv")
def run_rows(
    config: ModelConfig,
    weights: Weights[Array],
    kv: Array,
    rows: Rows,
    attention: Attention,
    mesh: Mesh,
) -> tuple[Array, Array]:
    """Final hidden states before the last norm, [B, n, hidden], and the updated KV."""
    run: Callable[..., tuple[Array, Array]] = jax.shard_map(
        partial(_run_rows, config, attention), mesh=mesh,
        in_specs=(partitions(config, mesh), KV_SPEC, P()), out_specs=(P(), KV_SPEC),
        check_vma=False,
    )  # fmt: skip
    return run(weights, kv, rows)


def _run_rows(
    config: ModelConfig, attention: Attention, weights: Weights[Array], kv: Array, rows: Rows
) -> tuple[Array, Array]:
    """`run_rows` on one of the devices.

    Layers read the cache as it was and attend to the step's own tokens beside it; what they add is
    written once, after the last layer. So the cache is never copied.
    """
    positions = rows.first[:, None] + jnp.arange(rows.token_ids.shape[1])
    inside = jnp.minimum(positions, config.max_context - 1)  # padding may lie beyond
    cos, sin = weights.cos[inside], weights.sin[inside]

    def layer(x: Array, xs: tuple[Array, Layers[Array]]) -> tuple[Array, Array]:
        index, w = xs
        q, added = _projected(config, w, x, cos, sin)
        if attention == "xla":
            attended = _attend(config, q, added, kv[index][:, rows.tables], rows)
        else:
            is_interpreted = attention == "pallas interpreted"
            attended = _attend_in_place(config, q, added, kv, index, rows, is_interpreted)
        attended = attended.reshape(*x.shape[:2], -1) @ w.output
        x = x + jax.lax.psum(attended, MODEL_AXIS)
        return x + jax.lax.psum(_feed_forward(config, w, x), MODEL_AXIS), added

    x = weights.embedding[rows.token_ids]
    x, added = jax.lax.scan(layer, x, (jnp.arange(config.num_layers), weights.layers))

    is_real = jnp.arange(positions.shape[1]) < rows.lengths[:, None]
    last = rows.tables.shape[1] - 1
    own = jnp.take_along_axis(rows.tables, jnp.minimum(positions // BLOCK_SIZE, last), axis=1)
    blocks = jnp.where(is_real, own, kv.shape[2] - 1)
    # Advanced indices come first in the result: [B, n, L, 2, Hk, D].
    added = added.transpose(2, 3, 0, 1, 4, 5)
    return x, kv.at[:, :, blocks, :, positions % BLOCK_SIZE].set(added)


@partial(jax.jit, static_argnames="config")
def logits(config: ModelConfig, weights: Weights[Array], hidden: Array) -> Array:
    """f32[S, V] of hidden states [S, hidden]."""
    normed = _rms_norm(hidden, weights.final_norm, config.rms_norm_eps)
    return jnp.einsum("sh,vh->sv", normed, weights.head, preferred_element_type=jnp.float32)


@partial(jax.jit)
def read_block(kv: Array, block: int) -> Array:
    """One block in canonical form: [layer, k|v, kv_head, 64, head_dim]."""
    return kv[:, :, block]


@partial(jax.jit, static_argnames="mesh", donate_argnames="kv")
def write_block(kv: Array, block: int, data: Array, mesh: Mesh) -> Array:
    """The KV with one block replaced."""
    written = kv.at[:, :, block].set(data)
    return jax.lax.with_sharding_constraint(written, NamedSharding(mesh, KV_SPEC))


def _projected(
    config: ModelConfig, w: Layers[Array], x: Array, cos: Array, sin: Array
) -> tuple[Array, Array]:
    """Queries [B, n, Hk, G, D] and the step's own KV [2, B, n, Hk, D] of x [B, n, hidden]."""
    normed = _rms_norm(x, w.attention_norm, config.rms_norm_eps)
    projected = jnp.einsum("bnh,hkgd->bnkgd", normed, w.qkv) + w.qkv_bias
    q, k, v = jnp.split(projected, [projected.shape[3] - 2, projected.shape[3] - 1], axis=3)
    if config.qk_norm:
        q = _rms_norm(q, w.q_norm, config.rms_norm_eps)
        k = _rms_norm(k, w.k_norm, config.rms_norm_eps)
    return _rotate(q, cos, sin), jnp.stack([_rotate(k, cos, sin), v])[..., 0, :]


def _attend(
    config: ModelConfig,
    q: Array,  # [B, n, Hk, G, D]
    added: Array,  # [k|v, B, n, Hk, D]     the step's own
    cached: Array,  # [k|v, B, M, Hk, 64, D], of which what is before the row's first token counts
    rows: Rows,
) -> Array:  # [B, n, Hk, G, D]
    """Each token against its row's context, the cached blocks gathered before."""
    own_keys, own_values = added.transpose(0, 1, 3, 2, 4)  # [B, Hk, n, D]
    old_keys, old_values = _gathered(cached[0]), _gathered(cached[1])  # [B, Hk, M * 64, D]
    num_cached = old_keys.shape[2]
    # An idle slot may hold anything, and a share of zero does not hide a NaN.
    is_cached = jnp.arange(num_cached) < rows.first[:, None]
    old_values = jnp.where(is_cached[:, None, :, None], old_values, 0)
    keys = jnp.concatenate([old_keys, own_keys], axis=2)
    values = jnp.concatenate([old_values, own_values], axis=2)

    scores = jnp.einsum("bnkgd,bksd->bkgns", q, keys, preferred_element_type=jnp.float32)
    visible = _visible(config, rows, num_cached)
    masked = jnp.where(visible[:, None, None], scores * config.head_dim**-0.5, -jnp.inf)
    shares = jax.nn.softmax(masked, axis=-1).astype(values.dtype)
    return jnp.einsum("bkgns,bksd->bnkgd", shares, values)


def _attend_in_place(
    config: ModelConfig,
    q: Array,  # [B, n, Hk, G, D]
    added: Array,  # [k|v, B, n, Hk, D]
    kv: Array,  # [L, k|v, N, Hk, 64, D]
    layer: Array,  # i32[]
    rows: Rows,
    is_interpreted: bool,
) -> Array:  # [B, n, Hk, G, D]
    """As `_attend`, by a kernel that reads blocks where they lie."""
    scaled = q * jnp.asarray(config.head_dim**-0.5, q.dtype)
    cached = attend_prefix(
        scaled, kv, layer, rows.first, rows.tables, window=config.sliding_window,
        interpret=is_interpreted,
    )  # fmt: skip
    scores = jnp.einsum("bnkgd,bskd->bnkgs", scaled, added[0], preferred_element_type=jnp.float32)
    visible = _visible(config, rows, 0)[:, :, None, None]  # [B, n, 1, 1, n]
    masked = jnp.where(visible, scores, -jnp.inf)
    largest = masked.max(axis=-1)  # finite: a token sees itself
    shares = jnp.exp(masked - largest[..., None])
    mixed = jnp.einsum(
        "bnkgs,bskd->bnkgd", shares.astype(q.dtype), added[1], preferred_element_type=jnp.float32
    )
    return merge(cached, Part(mixed, largest, shares.sum(axis=-1))).astype(q.dtype)


def _visible(config: ModelConfig, rows: Rows, num_cached: int) -> Array:
    """Which of the cached and of the step's own tokens each token sees: bool[B, n, cached + n]."""
    num_rows, count = rows.token_ids.shape
    first = rows.first[:, None]
    cached = jnp.broadcast_to(jnp.arange(num_cached), (num_rows, num_cached))
    own = first + jnp.arange(count)
    is_real = jnp.concatenate([cached < first, jnp.ones_like(own, bool)], axis=1)[:, None]
    keys = jnp.concatenate([cached, own], axis=1)[:, None]
    queries = own[:, :, None]
    visible = is_real & (keys <= queries)
    if config.sliding_window is not None:
        visible &= keys > queries - config.sliding_window
    return visible


def _gathered(blocks: Array) -> Array:
    """Blocks of each row side by side: [B, M, Hk, 64, D] → [B, Hk, M * 64, D]."""
    rows, count, heads, size, width = blocks.shape
    return blocks.transpose(0, 2, 1, 3, 4).reshape(rows, heads, count * size, width)


def _feed_forward(config: ModelConfig, w: Layers[Array], x: Array) -> Array:
    normed = _rms_norm(x, w.ffn_norm, config.rms_norm_eps)
    return (jax.nn.silu(normed @ w.gate) * (normed @ w.up)) @ w.down


def _rms_norm(x: Array, weight: Array, eps: float) -> Array:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale * weight.astype(jnp.float32)).astype(x.dtype)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary embedding of [B, n, Hk, heads, D], halves rotated."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None, None], sin[:, :, None, None]
    rotated = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
