"""Decoder-only transformers in Torch: Llama, Qwen2, Qwen3 and Mistral differ by configuration only.

One function of token ids and positions; where keys and values live is the caller's business, so the
same code serves any device and any attention kernel. Rotary embeddings rotate halves (NeoX order):
loaders bring Q and K into that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from skerry_core.config import ModelConfig
from skerry_core.kernels.rope import rope_frequencies
from skerry_core.kernels.torch_ops import TORCH_OPS, Ops


class Attend(Protocol):
    """Stores `k`, `v` of one layer and attends: `q` [T, H, D], `k`, `v` [T, Hk, D] → [T, H, D]."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Products are stored as Torch wants them, [out, in]; q, k and v in one matrix."""

    attention_norm: Tensor  # [hidden]
    qkv: Tensor  # [(H + 2 * Hk) * D, hidden]
    qkv_bias: Tensor | None  # [(H + 2 * Hk) * D]
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    output: Tensor  # [hidden, H * D]
    ffn_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * intermediate, hidden]
    down: Tensor  # [hidden, intermediate]


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: Tensor  # [V, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    head: Tensor  # [V, hidden]; the embedding itself when tied


def assemble(config: ModelConfig, tensors: Mapping[str, Tensor]) -> DecoderWeights:
    """Arrange named tensors (GGUF's names, halves-rotating Q and K) for the decoder.

    Raises KeyError with the missing tensor's name.
    """

    def layer(index: int) -> LayerWeights:
        def get(name: str) -> Tensor:
            return tensors[f"blk.{index}.{name}"]

        bias = None
        if config.attention_bias:
            bias = torch.cat([get(f"attn_{part}.bias") for part in "qkv"])
        return LayerWeights(
            attention_norm=get("attn_norm.weight"),
            qkv=torch.cat([get(f"attn_{part}.weight") for part in "qkv"]),
            qkv_bias=bias,
            q_norm=get("attn_q_norm.weight") if config.qk_norm else None,
            k_norm=get("attn_k_norm.weight") if config.qk_norm else None,
            output=get("attn_output.weight"),
            ffn_norm=get("ffn_norm.weight"),
            gate_up=torch.cat([get("ffn_gate.weight"), get("ffn_up.weight")]),
            down=get("ffn_down.weight"),
        )

    embedding = tensors["token_embd.weight"]
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layer(index) for index in range(config.num_layers)),
        final_norm=tensors["output_norm.weight"],
        head=embedding if config.tied_embeddings else tensors["output.weight"],
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
        self._ops = ops
        self._cos, self._sin = rope_table(config, weights.embedding.device)

    def hidden(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Final hidden states before the last norm, [T, hidden], of i64[T] ids at i64[T]."""
        ops, eps = self._ops, self.config.rms_norm_eps
        cos, sin = self._cos[positions], self._sin[positions]
        x = functional.embedding(token_ids, self.weights.embedding)
        branch = torch.zeros_like(x)
        for index, layer in enumerate(self.weights.layers):
            normed, x = ops.add_rms_norm(x, branch, layer.attention_norm, eps)
            branch = self._attention(index, layer, normed, cos, sin, attend)
            normed, x = ops.add_rms_norm(x, branch, layer.ffn_norm, eps)
            branch = self._feed_forward(layer, normed)
        return x + branch

    def logits(self, hidden: Tensor) -> Tensor:
        """f32[S, V] of hidden states [S, hidden]."""
        normed = self._ops.rms_norm(hidden, self.weights.final_norm, self.config.rms_norm_eps)
        return self._ops.linear(normed, self.weights.head, None).float()

    def _attention(
        self, index: int, layer: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend
    ) -> Tensor:
        c, ops = self.config, self._ops
        heads = ops.linear(x, layer.qkv, layer.qkv_bias).view(len(x), -1, c.head_dim)
        q, k, v = heads.split([c.num_heads, c.num_kv_heads, c.num_kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = ops.rms_norm(q, layer.q_norm, c.rms_norm_eps)
            k = ops.rms_norm(k, layer.k_norm, c.rms_norm_eps)
        attended = attend(index, ops.rotate(q, cos, sin), ops.rotate(k, cos, sin), v)
        return ops.linear(attended.reshape(len(x), -1), layer.output, None)

    def _feed_forward(self, layer: LayerWeights, x: Tensor) -> Tensor:
        ops = self._ops
        return ops.linear(ops.swiglu(ops.linear(x, layer.gate_up, None)), layer.down, None)
