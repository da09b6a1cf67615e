"""A decoder's weights in JAX: a tree of arrays, layers stacked, divided over a mesh of devices.

The mesh has one axis, `MODEL_AXIS` (Megatron-LM, Shoeybi et al., 2019): each device has some KV
heads with all that belongs to them, and some of the feed-forward network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from skerry_core.config import ModelConfig, RopeConfig
from skerry_core.kernels.rope import rope_frequencies

MODEL_AXIS = "model"
KV_SPEC = P(None, None, None, MODEL_AXIS)  # of `[layer, k|v, block, kv_head, 64, head_dim]`
BLOCK_SPEC = P(None, None, MODEL_AXIS)  # of one block of it
Leaf = TypeVar("Leaf")
Host = NDArray[Any]


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


PARTITIONS = DecoderTree(
    embedding=P(MODEL_AXIS),
    layers=LayerStack(
        attention_norm=P(), qkv=P(None, None, MODEL_AXIS), qkv_bias=P(None, MODEL_AXIS), rope=P(),
        window=P(), q_norm=P(), k_norm=P(), output=P(None, MODEL_AXIS), attention_post_norm=P(),
        ffn_norm=P(), ffn_post_norm=P(), gate=P(None, None, MODEL_AXIS),
        up=P(None, None, MODEL_AXIS), down=P(None, MODEL_AXIS),
    ),
    final_norm=P(), head=P(MODEL_AXIS), cos=P(), sin=P(),
)  # fmt: skip
"""How each weight is divided over the mesh."""


def assemble(config: ModelConfig, tensors: Mapping[str, NDArray[Any]]) -> DecoderTree[Host]:
    """Arrange named tensors (GGUF's names, halves-rotating Q and K), all of one dtype: a model's or
    a rank's.

    Raises KeyError with the missing tensor's name.
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
    return DecoderTree(
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


def padded_to(tree: DecoderTree[Host], tokens: int, width: int) -> DecoderTree[Host]:
    """Return a rank's weights with zeros up to the most tokens and width of feed-forward networks
    that any has: arrays are divided evenly."""

    def padded(array: Host, axis: int, size: int) -> Host:
        missing = [(0, 0)] * array.ndim
        missing[axis] = 0, size - array.shape[axis]
        return np.pad(array, missing) if size > array.shape[axis] else array

    layers = tree.layers
    embedding = padded(tree.embedding, 0, tokens)
    is_tied = tree.head is tree.embedding
    return tree._replace(
        embedding=embedding,
        head=embedding if is_tied else padded(tree.head, 0, tokens),
        layers=layers._replace(
            gate=padded(layers.gate, 2, width), up=padded(layers.up, 2, width),
            down=padded(layers.down, 1, width),
        ),
    )  # fmt: skip


def join(parts: Iterable[DecoderTree[Host]], mesh: Mesh) -> DecoderTree[Array]:
    """Place what each device of this process has, in the order of the mesh: one at a time."""
    own = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    placed: list[DecoderTree[Array]] = []
    is_tied = False
    for part, device in zip(parts, own, strict=True):
        is_tied = part.head is part.embedding
        tree = part._replace(head=part.final_norm) if is_tied else part
        placed.append(jax.device_put(tree, device, may_alias=False))
    joined: DecoderTree[Array] = jax.tree.map(
        lambda spec, *arrays: _joined(arrays, spec, mesh), PARTITIONS, *placed
    )
    return joined._replace(head=joined.embedding) if is_tied else joined


def _joined(arrays: Sequence[Array], spec: P, mesh: Mesh) -> Array:
    shape = list(arrays[0].shape)
    for axis, name in enumerate(spec):
        shape[axis] *= 1 if name is None else mesh.size
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, list(arrays))


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
    """Place an array, or a tree of them, on the devices of a mesh; every process has it whole."""
    sharding = NamedSharding(mesh, spec)
    if sharding.is_fully_addressable:
        return jax.device_put(arrays, sharding, may_alias=False)

    def part(array: NDArray[Any]) -> Array:
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(part, arrays)
