"""Decoder-only transformers in Torch: Llama, Qwen2, Qwen3 and Mistral differ by configuration only.

One function of token ids and positions; where keys and values live is the caller's business, so the
same code serves any device and any attention kernel. Rotary embeddings rotate halves (NeoX order):
loaders bring Q and K into that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional

from skerry_core.config import ModelConfig
from skerry_core.kernels.rope import rope_frequencies
from skerry_core.kernels.torch.quantized import Matrix, stacked
from skerry_core.kernels.torch.torch_ops import TORCH_OPS, Ops


class Attend(Protocol):
    """One layer's attention: norms heads where the model does, rotates, stores KV and attends.

    `heads` [T, H + 2 Hk, D] are the projections, queries, then keys, then values; they may be
    overwritten. Gives [T, H, D].
    """

    def __call__(self, layer: int, heads: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Products are stored as Torch wants them, [out, in]; q, k and v in one matrix."""

    attention_norm: Tensor  # [hidden]
    qkv: Matrix  # [(H + 2 * Hk) * D, hidden]
    qkv_bias: Tensor | None  # [(H + 2 * Hk) * D]
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    output: Matrix  # [hidden, H * D]
    ffn_norm: Tensor  # [hidden]
    gate_up: Matrix  # [2 * intermediate, hidden]
    down: Matrix  # [hidden, intermediate]


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: Tensor  # [V, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    head: Matrix  # [V, hidden]; the embedding when tied


def assemble(config: ModelConfig, tensors: Mapping[str, Matrix]) -> DecoderWeights:
    """Arrange named tensors (GGUF's names, halves-rotating Q and K) for the decoder.

    Matrices may be quantised; the embedding and vectors are not. Raises KeyError with the missing
    tensor's name.
    """

    def vector(name: str) -> Tensor:
        return cast(Tensor, tensors[name])

    def layer(index: int) -> LayerWeights:
        def get(name: str) -> Matrix:
            return tensors[f"blk.{index}.{name}.weight"]

        def norm(name: str) -> Tensor:
            return vector(f"blk.{index}.{name}_norm.weight")

        bias = None
        if config.attention_bias:
            bias = torch.cat([vector(f"blk.{index}.attn_{part}.bias") for part in "qkv"])
        return LayerWeights(
            attention_norm=norm("attn"),
            qkv=stacked([get(f"attn_{part}") for part in "qkv"]),
            qkv_bias=bias,
            q_norm=norm("attn_q") if config.qk_norm else None,
            k_norm=norm("attn_k") if config.qk_norm else None,
            output=get("attn_output"),
            ffn_norm=norm("ffn"),
            gate_up=stacked([get("ffn_gate"), get("ffn_up")]),
            down=get("ffn_down"),
        )

    embedding = vector("token_embd.weight")
    own_head = tensors.get("output.weight", embedding)  # of a tied model: the same, quantised
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layer(index) for index in range(config.num_layers)),
        final_norm=vector("output_norm.weight"),
        head=own_head if config.tied_embeddings else tensors["output.weight"],
    )


def rope_table(config: ModelConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines, f32[max_context, head_dim / 2], computed in double precision."""
    positions = torch.arange(config.max_context, dtype=torch.float64)
    angles = positions[:, None] * torch.from_numpy(rope_frequencies(config))
    return angles.cos().float().to(device), angles.sin().float().to(device)


class Decoder:
    """Weights and rotary tables on a device; `hidden` runs all layers over T flat tokens."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, ops: Ops = TORCH_OPS) -> None:
        self.config = config
        self.weights = weights
        self.cos, self.sin = rope_table(config, weights.embedding.device)
        self._ops = ops

    def hidden(self, token_ids: Tensor, attend: Attend) -> Tensor:
        """Final hidden states before the last norm, [T, hidden], of integer ids [T]."""
        ops, eps = self._ops, self.config.rms_norm_eps
        x = functional.embedding(token_ids, self.weights.embedding)
        branch = torch.zeros_like(x)
        for index, layer in enumerate(self.weights.layers):
            normed, x = ops.add_rms_norm(x, branch, layer.attention_norm, eps)
            heads = ops.linear(normed, layer.qkv, layer.qkv_bias)
            attended = attend(index, heads.view(len(x), -1, self.config.head_dim))
            branch = ops.linear(attended.reshape(len(x), -1), layer.output, None)
            normed, x = ops.add_rms_norm(x, branch, layer.ffn_norm, eps)
            gate_up = ops.linear(normed, layer.gate_up, None)
            branch = ops.linear(ops.swiglu(gate_up), layer.down, None)
        return x + branch

    def logits(self, hidden: Tensor) -> Tensor:
        """f32[S, V] of hidden states [S, hidden]."""
        normed = self._ops.rms_norm(hidden, self.weights.final_norm, self.config.rms_norm_eps)
        return self._ops.linear(normed, self.weights.head, None).float()

    def rotated(
        self, index: int, heads: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of a layer's projections, ready to be stored and attended to.

        Heads [T, H + 2 Hk, D] at i64[T] give q [T, H, D], k and v [T, Hk, D].
        """
        c, ops, layer = self.config, self._ops, self.weights.layers[index]
        cos, sin = self.cos[positions], self.sin[positions]
        q, k, v = heads.split([c.num_heads, c.num_kv_heads, c.num_kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = ops.rms_norm(q, layer.q_norm, c.rms_norm_eps)
            k = ops.rms_norm(k, layer.k_norm, c.rms_norm_eps)
        return ops.rotate(q, cos, sin), ops.rotate(k, cos, sin), v
