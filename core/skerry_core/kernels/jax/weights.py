"""A decoder's weights in JAX: a tree of arrays, layers stacked, divided over a mesh of devices.

The mesh has one axis, `MODEL_AXIS` (Megatron-LM, Shoeybi et al., 2019): each device has some KV
heads with all that belongs to them, and some of the feed-forward network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from skerry_core.config import ConfigError, ModelConfig, RopeConfig
from skerry_core.kernels.rope import rope_frequencies

MODEL_AXIS = "model"
KV_SPEC = P(None, None, None, MODEL_AXIS)  # of `[layer, k|v, block, kv_head, 64, head_dim]`
BLOCK_SPEC = P(None, None, MODEL_AXIS)  # of one block of it
Leaf = TypeVar("Leaf")


class LayerStack(NamedTuple, Generic[Leaf]):
    """Weights of all layers, stacked on axis 0 (L). Products are [in, out]."""

    attention_norm: Leaf  # [L, hidden]; used where the model has it, as are the other norms
    qkv: Leaf  # [L, hidden, Hk, G + 2, D]; of each KV head its queries, its key, its value
    qkv_bias: Leaf  # [L, Hk, G + 2, D]; zeros when the model has none
    rope: Leaf  # i32[L]  which table of angles; the last one rotates nothing
    window: Leaf  # i32[L]  tokens that a token sees, itself included
    q_norm: Leaf  # [L, D]; across heads [L, Hk, G, D]
    k_norm: Leaf  # [L, D]; across heads [L, Hk, 1, D]
    output: Leaf  # [L, H * D, hidden]
    attention_post_norm: Leaf  # [L, hidden]  of what attention adds
    ffn_norm: Leaf  # [L, hidden]
    ffn_post_norm: Leaf  # [L, hidden]
    gate: Leaf  # [L, hidden, intermediate]
    up: Leaf  # [L, hidden, intermediate]
    down: Leaf  # [L, intermediate, hidden]


class DecoderTree(NamedTuple, Generic[Leaf]):
    embedding: Leaf  # [V, hidden]
    layers: LayerStack[Leaf]
    final_norm: Leaf  # [hidden]
    head: Leaf  # [V, hidden]
    cos: Leaf  # f32[tables, max_context, rotary_dim / 2]
    sin: Leaf  # f32[tables, max_context, rotary_dim / 2]


def partitions(config: ModelConfig, mesh: Mesh) -> DecoderTree[P]:
    """Return how each weight is divided over the mesh. Raises ConfigError where it cannot be.

    A vocabulary that cannot be divided is multiplied by whole on every device.
    """
    devices = mesh.shape[MODEL_AXIS]
    for name in ("num_kv_heads", "intermediate_size"):
        if getattr(config, name) % devices:
            size = getattr(config, name)
            raise ConfigError(f"{name} ({size}) must be a multiple of the devices ({devices})")
    heads = P(None, MODEL_AXIS) if config.qk_norm == "whole" else P()
    return DecoderTree(
        embedding=P(),
        layers=LayerStack(
            attention_norm=P(), qkv=P(None, None, MODEL_AXIS), qkv_bias=P(None, MODEL_AXIS),
            rope=P(), window=P(), q_norm=heads, k_norm=heads, output=P(None, MODEL_AXIS),
            attention_post_norm=P(), ffn_norm=P(), ffn_post_norm=P(),
            gate=P(None, None, MODEL_AXIS), up=P(None, None, MODEL_AXIS), down=P(None, MODEL_AXIS),
        ),
        final_norm=P(), head=P() if config.vocab_size % devices else P(MODEL_AXIS), cos=P(),
        sin=P(),
    )  # fmt: skip


def assemble(
    config: ModelConfig, tensors: Mapping[str, NDArray[Any]], mesh: Mesh
) -> DecoderTree[Array]:
    """Arrange named tensors (GGUF's names, halves-rotating Q and K), all of one dtype.

    Raises KeyError with the missing tensor's name, and what `partitions` raises.
    """
    layers = range(config.num_layers)

    def stacked(name: str, *, transpose: bool = False) -> NDArray[Any]:
        each = [tensors[f"blk.{i}.{name}"] for i in layers]
        return np.stack([a.T for a in each] if transpose else each)

    def by_head(part: str) -> NDArray[Any]:
        """Return [L, Hk, heads, D, ...] of the rows of Q, K or V."""
        rows = stacked(f"attn_{part}")
        shape = (config.num_layers, config.num_kv_heads, -1, config.head_dim, *rows.shape[2:])
        return rows.reshape(shape)

    def qkv(kind: str) -> NDArray[Any]:
        return np.concatenate([by_head(f"{part}.{kind}") for part in "qkv"], axis=2)

    embedding = tensors["token_embd.weight"]
    weight = qkv("weight").transpose(0, 4, 1, 2, 3)
    no_bias = np.zeros((config.num_layers, *weight.shape[2:]), embedding.dtype)

    def norm(name: str, is_there: bool) -> NDArray[Any]:
        return stacked(f"{name}.weight") if is_there else np.ones((config.num_layers, 1))

    def head_norm(name: str) -> NDArray[Any]:
        rows = norm(name, config.qk_norm is not None)
        shape = (config.num_layers, config.num_kv_heads, -1, config.head_dim)
        return rows.reshape(shape) if config.qk_norm == "whole" else rows

    before, after = config.norms_before, config.norms_after
    cos, sin = _angles(config)
    whole = DecoderTree(
        embedding=embedding,
        layers=LayerStack(
            attention_norm=norm("attn_norm", before),
            qkv=weight,
            qkv_bias=qkv("bias") if config.attention_bias else no_bias,
            rope=np.array([_table(config, layer.rope) for layer in config.layers], np.int32),
            window=np.array([e.window or config.max_context for e in config.layers], np.int32),
            q_norm=head_norm("attn_q_norm"),
            k_norm=head_norm("attn_k_norm"),
            output=stacked("attn_output.weight", transpose=True),
            attention_post_norm=norm("post_attention_norm", after),
            ffn_norm=norm("ffn_norm", before),
            ffn_post_norm=norm("post_ffw_norm", after),
            gate=stacked("ffn_gate.weight", transpose=True),
            up=stacked("ffn_up.weight", transpose=True),
            down=stacked("ffn_down.weight", transpose=True),
        ),
        final_norm=tensors["output_norm.weight"],
        head=embedding if config.tied_embeddings else tensors["output.weight"],
        cos=cos,
        sin=sin,
    )
    specs = partitions(config, mesh)
    placed: DecoderTree[Array] = jax.tree.map(
        lambda array, spec: place(array, mesh, spec), whole, specs
    )
    shares_head = config.tied_embeddings and specs.head == specs.embedding
    return placed._replace(head=placed.embedding) if shares_head else placed


def _angles(config: ModelConfig) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return cosines and sines of each of the model's rotary embeddings, and of none."""
    shape = (len(config.ropes) + 1, config.max_context, config.rotated // 2)
    cos, sin = np.ones(shape, np.float32), np.zeros(shape, np.float32)
    for index, rope in enumerate(config.ropes):
        angles = np.arange(config.max_context)[:, None] * rope_frequencies(rope, config.rotated)
        cos[index], sin[index] = rope.amplitude * np.cos(angles), rope.amplitude * np.sin(angles)
    return cos, sin


def _table(config: ModelConfig, rope: RopeConfig | None) -> int:
    return len(config.ropes) if rope is None else config.ropes.index(rope)


def place(arrays: Any, mesh: Mesh, spec: P) -> Any:
    """Place an array, or a tree of them, on the devices of a mesh."""
    return jax.device_put(arrays, NamedSharding(mesh, spec), may_alias=False)
