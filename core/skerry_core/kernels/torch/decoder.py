"""Decoder-only transformers in Torch; families differ by their `ModelConfig` only.

One function of token ids and positions; where keys and values live is the caller's business, so the
same code serves any device and any attention kernel. Rotary embeddings rotate halves (NeoX order):
loaders bring Q and K into that order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional

from skerry_core.config import ModelConfig, RopeConfig
from skerry_core.kernels.rope import rope_frequencies
from skerry_core.kernels.torch.attention import AttentionForm
from skerry_core.kernels.torch.experts import ExpertWeights, run_experts
from skerry_core.kernels.torch.quantized import Matrix, stacked
from skerry_core.kernels.torch.torch_ops import TORCH_OPS, Ops, capped, of_one_rank
from skerry_core.models.sharding import Shard, whole_model
from skerry_core.models.tensor_names import EMBEDDING, FINAL_NORM, HEAD


class Attend(Protocol):
    """One layer's attention: norms heads where the model does, rotates, stores KV and attends.

    `heads` [T, H + 2 Hk, D] are the projections, queries, then keys, then values; they may be
    overwritten. Gives [T, H, D].
    """

    def __call__(self, layer: int, heads: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Products are stored as Torch wants them, [out, in]; q, k and v in one matrix."""

    attention_norm: Tensor | None  # [hidden]
    qkv: Matrix  # [(H + 2 * Hk) * D, hidden]
    qkv_bias: Tensor | None  # [(H + 2 * Hk) * D]
    q_norm: Tensor | None  # [D], or [H * D] across heads
    k_norm: Tensor | None  # [D], or [Hk * D]
    output: Matrix  # [hidden, H * D]
    ffn_norm: Tensor | None  # [hidden]
    gate_up: Matrix | None  # [2 * intermediate, hidden]; None: there are experts
    down: Matrix | None  # [hidden, intermediate]
    experts: ExpertWeights | None = None
    output_bias: Tensor | None = None  # [hidden]
    attention_post_norm: Tensor | None = None  # [hidden]  of what attention adds
    ffn_post_norm: Tensor | None = None  # [hidden]
    sinks: Tensor | None = None  # [H]


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Embedding and head are of the tokens that a rank has; neither is there between stages."""

    embedding: Tensor | None  # [V, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    head: Matrix | None  # [V, hidden]; the embedding when tied
    tokens: range  # of the embedding


def assemble(
    config: ModelConfig, tensors: Mapping[str, Matrix], shard: Shard | None = None
) -> DecoderWeights:
    """Arrange named tensors (GGUF's names, halves-rotating Q and K) for the decoder, or for a rank
    that has a shard.

    Matrices may be quantised; the embedding, vectors and experts are not. Raises KeyError with the
    missing tensor's name.
    """
    shard = shard or whole_model(config)
    embedding = cast(Tensor, tensors[EMBEDDING]) if shard.stage.is_first else None
    head = None
    if shard.stage.is_last:  # of a tied model the same, where it is not quantised
        is_same = config.tied_embeddings and HEAD not in tensors
        head = embedding if is_same else tensors[HEAD]
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_layer(config, index, tensors) for index in range(config.num_layers)),
        final_norm=cast(Tensor, tensors[FINAL_NORM]),
        head=head,
        tokens=shard.tokens(config),
    )


def _layer(config: ModelConfig, index: int, tensors: Mapping[str, Matrix]) -> LayerWeights:
    def get(name: str) -> Matrix:
        return tensors[f"blk.{index}.{name}.weight"]

    def vector(name: str) -> Tensor:
        return cast(Tensor, tensors[f"blk.{index}.{name}"])

    def maybe(name: str, is_there: bool) -> Tensor | None:
        return vector(name) if is_there else None

    has_experts = config.layers[index].has_experts
    has_qk_norm, before, after = config.qk_norm is not None, config.norms_before, config.norms_after
    bias = None
    if config.attention_bias:
        bias = torch.cat([vector(f"attn_{part}.bias") for part in "qkv"])
    return LayerWeights(
        attention_norm=maybe("attn_norm.weight", before),
        qkv=stacked([get(f"attn_{part}") for part in "qkv"]),
        qkv_bias=bias,
        q_norm=maybe("attn_q_norm.weight", has_qk_norm),
        k_norm=maybe("attn_k_norm.weight", has_qk_norm),
        output=get("attn_output"),
        ffn_norm=maybe("ffn_norm.weight", before),
        gate_up=None if has_experts else stacked([get("ffn_gate"), get("ffn_up")]),
        down=None if has_experts else get("ffn_down"),
        experts=_experts(config, vector) if has_experts else None,
        output_bias=maybe("attn_output.bias", config.output_bias),
        attention_post_norm=maybe("post_attention_norm.weight", after),
        ffn_post_norm=maybe("post_ffw_norm.weight", after),
        sinks=maybe("attn_sinks.weight", config.attention_sinks),
    )


def _experts(config: ModelConfig, vector: Callable[[str], Tensor]) -> ExpertWeights:
    has_biases = config.experts is not None and config.experts.has_biases
    gate_up_bias = None
    if has_biases:
        parts = [vector("ffn_gate_exps.bias"), vector("ffn_up_exps.bias")]
        gate_up_bias = torch.cat(parts, dim=1)
    return ExpertWeights(
        router=vector("ffn_gate_inp.weight").float(),
        router_bias=vector("ffn_gate_inp.bias").float() if has_biases else None,
        gate_up=torch.cat([vector("ffn_gate_exps.weight"), vector("ffn_up_exps.weight")], dim=1),
        gate_up_bias=gate_up_bias,
        down=vector("ffn_down_exps.weight"),
        down_bias=vector("ffn_down_exps.bias") if has_biases else None,
    )


def rope_table(
    rope: RopeConfig, rotary_dim: int, max_context: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, f32[max_context, rotary_dim / 2], computed in double precision."""
    positions = torch.arange(max_context, dtype=torch.float64)
    angles = positions[:, None] * torch.from_numpy(rope_frequencies(rope, rotary_dim))
    cos, sin = (rope.amplitude * each for each in (angles.cos(), angles.sin()))
    return cos.float().to(device), sin.float().to(device)


class Decoder:
    """Weights and rotary tables on a device; `hidden` runs all layers over T flat tokens."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, ops: Ops = TORCH_OPS) -> None:
        self.config = config
        self.weights = weights
        self.is_first = weights.embedding is not None  # layers begin with token ids
        self.is_last = weights.head is not None  # logits are made of what they make
        self.is_whole = ops.reduce is of_one_rank  # they have all of their heads and outputs here
        self._ops = ops
        device = weights.final_norm.device
        self._rope_tables = {
            rope: rope_table(rope, config.rotated, config.max_context, device)
            for rope in config.ropes
        }

    def rope_table(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Return a layer's cosines and sines; None where nothing is rotated."""
        rope = self.config.layers[layer].rope
        return None if rope is None else self._rope_tables[rope]

    def attention_form(self, layer: int) -> AttentionForm:
        """Return what a layer's attention is like."""
        c = self.config
        scale = c.head_dim**-0.5 if c.attention_scale is None else c.attention_scale
        sinks = self.weights.layers[layer].sinks
        return AttentionForm(scale, c.layers[layer].window, c.score_cap, sinks)

    def embedded(self, token_ids: Tensor) -> Tensor:
        """Return what the first layer begins with, [T, hidden], of integer ids [T]."""
        weights = self.weights
        assert weights.embedding is not None
        if len(weights.tokens) == self.config.vocab_size:
            x = functional.embedding(token_ids, weights.embedding)
        else:
            rows = token_ids - weights.tokens.start
            is_own = (rows >= 0) & (rows < len(weights.tokens))
            x = functional.embedding(rows.where(is_own, 0), weights.embedding)
            x = self._ops.reduce(x.where(is_own[:, None], 0))
        return x if self.config.embedding_scale == 1 else x * self.config.embedding_scale

    def hidden(self, x: Tensor, attend: Attend) -> Tensor:
        """Return what the layers make of [T, hidden]: what the next stage begins with, or the final
        hidden states before the last norm."""
        ops, c = self._ops, self.config
        branch = torch.zeros_like(x)
        for index, layer in enumerate(self.weights.layers):
            normed, x = self._add(x, branch, layer.attention_norm)
            heads = ops.linear(normed, layer.qkv, layer.qkv_bias)
            attended = attend(index, heads.view(len(x), -1, c.head_dim))
            attended = attended.reshape(len(x), -1)
            branch = ops.reduce(ops.linear(attended, layer.output, layer.output_bias))
            branch = self._finished(branch, layer.attention_post_norm)
            normed, x = self._add(x, branch, layer.ffn_norm)
            branch = ops.reduce(self._feed_forward(layer, normed))
            branch = self._finished(branch, layer.ffn_post_norm)
        return x + branch

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [S, V] of hidden states [S, hidden]: as they were multiplied, or, where the
        model scales or caps them, f32."""
        c = self.config
        assert self.weights.head is not None
        normed = self._ops.rms_norm(hidden, self.weights.final_norm, c.rms_norm_eps)
        logits = self._ops.gather(self._ops.linear(normed, self.weights.head, None))
        if c.logit_scale != 1:
            logits = logits.float() * c.logit_scale
        return logits if c.logit_cap is None else capped(logits.float(), c.logit_cap)

    def rotated(
        self, index: int, heads: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of a layer's projections, ready to be stored and attended
        to.

        Heads [T, H + 2 Hk, D] at i64[T] give q [T, H, D], k and v [T, Hk, D].
        """
        c, ops, layer = self.config, self._ops, self.weights.layers[index]
        q, k, v = heads.split([c.num_heads, c.num_kv_heads, c.num_kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = (
                ops.rms_norm(each.reshape(len(each), -1, len(norm)), norm, c.rms_norm_eps)
                .reshape(each.shape)
                for each, norm in ((q, layer.q_norm), (k, layer.k_norm))
            )  # fmt: skip
        if (table := self.rope_table(index)) is not None:
            cos, sin = (part[positions] for part in table)
            q, k = ops.rotate(q, cos, sin), ops.rotate(k, cos, sin)
        return q, k, v

    def _add(self, x: Tensor, branch: Tensor, norm: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what the next branch begins with, and `x + branch`."""
        if norm is not None:
            return self._ops.add_rms_norm(x, branch, norm, self.config.rms_norm_eps)
        total = x + branch
        return total, total

    def _finished(self, branch: Tensor, norm: Tensor | None) -> Tensor:
        """Return what a branch adds to the hidden states."""
        if norm is not None:
            branch = self._ops.rms_norm(branch, norm, self.config.rms_norm_eps)
        scale = self.config.residual_scale
        return branch if scale == 1 else branch * scale

    def _feed_forward(self, layer: LayerWeights, normed: Tensor) -> Tensor:
        ops, activation = self._ops, self.config.activation
        if layer.experts is not None and self.config.experts is not None:
            return run_experts(self.config.experts, layer.experts, normed, ops, activation)
        assert layer.gate_up is not None
        assert layer.down is not None
        gate_up = ops.linear(normed, layer.gate_up, None)
        return ops.linear(ops.gated(gate_up, activation), layer.down, None)
