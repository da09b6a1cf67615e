"""Llama and its kin in plain fp32 NumPy: what runners are compared with, teacher-forced.

One whole sequence at a time, no cache, no blocks, weights dequantised; nothing is shared with the
kernels, so that they cannot be wrong together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from skerry_core.config import RopeConfig
from skerry_core.models.weight_file import WeightFile
from skerry_core.weights.tensors import dequantize

Float32 = NDArray[np.float32]


class ReferenceModel:
    """The decoder that a weight file describes."""

    def __init__(self, file: WeightFile) -> None:
        self.config = file.config
        self._weights = {name: dequantize(tensor) for name, tensor in file.tensors.items()}

    def logits(self, token_ids: Sequence[int]) -> Float32:
        """f32[T, V]: row t is the prediction of token t + 1."""
        config = self.config
        x = self._weights["token_embd.weight"][np.asarray(token_ids)]  # [T, hidden]
        for layer in range(config.num_layers):
            h = self._norm(x, f"blk.{layer}.attn_norm")
            x = x + self._attention(h, layer)
            h = self._norm(x, f"blk.{layer}.ffn_norm")
            x = x + self._feed_forward(h, layer)
        head = "token_embd" if config.tied_embeddings else "output"
        return self._linear(self._norm(x, "output_norm"), head)

    def _attention(self, h: Float32, layer: int) -> Float32:
        config, prefix = self.config, f"blk.{layer}."
        rope, window = config.layers[layer].rope, config.layers[layer].window
        heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
        q, k, v = (
            self._linear(h, f"{prefix}attn_{part}").reshape(len(h), count, config.head_dim)
            for part, count in heads.items()
        )
        if config.qk_norm:
            q = self._norm(q, f"{prefix}attn_q_norm")
            k = self._norm(k, f"{prefix}attn_k_norm")
        if rope is not None:
            angles = rotary_angles(rope, config.head_dim, len(h))
            q, k = rotate(q, angles), rotate(k, angles)
        group = config.num_heads // config.num_kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k, optimize=True) / np.float32(
            math.sqrt(config.head_dim)
        )
        mixed = np.einsum(
            "hqk,khd->qhd", softmax(scores + causal_mask(len(h), window)), v, optimize=True
        )
        return self._linear(mixed.reshape(len(h), -1), f"{prefix}attn_output")

    def _feed_forward(self, h: Float32, layer: int) -> Float32:
        gate = self._linear(h, f"blk.{layer}.ffn_gate")
        up = self._linear(h, f"blk.{layer}.ffn_up")
        with np.errstate(over="ignore"):
            silu = np.divide(gate, 1 + np.exp(-gate))
        return self._linear(silu * up, f"blk.{layer}.ffn_down")

    def _linear(self, x: Float32, name: str) -> Float32:
        y = x @ self._weights[f"{name}.weight"].T
        return y + self._weights[f"{name}.bias"] if f"{name}.bias" in self._weights else y

    def _norm(self, x: Float32, name: str) -> Float32:
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        scale = 1 / np.sqrt(mean_square + np.float32(self.config.rms_norm_eps))
        return x * scale * self._weights[f"{name}.weight"]


def rotary_angles(rope: RopeConfig, head_dim: int, length: int) -> Float32:
    """f32[T, head_dim / 2]: position times frequency, computed in float64."""
    half = head_dim // 2
    frequencies = rope.theta ** -(np.arange(half) / half)
    if rope.multipliers:
        frequencies = frequencies * np.array(rope.multipliers)
    return np.outer(np.arange(length), frequencies).astype(np.float32)


def rotate(x: Float32, angles: Float32) -> Float32:
    """Rotary embedding of f32[T, heads, head_dim] whose pairs are (i, i + head_dim / 2)."""
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def causal_mask(length: int, window: int | None) -> Float32:
    """f32[T, T], added to scores: 0 where the key is visible, -inf elsewhere."""
    distance = np.arange(length)[:, None] - np.arange(length)
    visible = (distance >= 0) & (distance < (window or length))
    return np.where(visible, np.float32(0), np.float32(-np.inf))


def softmax(scores: Float32) -> Float32:
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def kl_divergence(reference: Float32, logits: Float32) -> Float32:
    """KL(reference || other) of each row, in nats: f32[T]."""
    p, q = (log_softmax(x.astype(np.float64)) for x in (reference, logits))
    return np.sum(np.exp(p) * (p - q), axis=-1).astype(np.float32)


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
