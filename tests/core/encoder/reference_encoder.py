"""What the encoder's kernels mean, in NumPy and double precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skerry_core.encoder.bert import BertFile, ClassifierHead
from skerry_core.encoder.encoder import Encoder
from skerry_core.weights.tensors import Float32

Float64 = NDArray[np.float64]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def layer_norm(x: NDArray[Any], gamma: NDArray[Any], beta: NDArray[Any], epsilon: float) -> Float64:
    """Norm rows of x[..., n] to mean 0 and variance 1, then scale and shift them."""
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    variance = np.mean(centred**2, axis=-1, keepdims=True)
    normal: Float64 = centred / np.sqrt(variance + epsilon) * gamma + beta
    return normal


def gelu(x: NDArray[Any]) -> Float64:
    """Compute `x Φ(x)`, elementwise."""
    wide = x.astype(np.float64)
    y: Float64 = 0.5 * wide * (1.0 + _erf(wide / math.sqrt(2.0)))
    return y


def attend(qkv: NDArray[Any], head_dim: int) -> Float64:
    """Attend with every token to all: f[tokens, 3 hidden] of a sequence to f64[tokens, hidden]."""
    tokens = len(qkv)
    q, k, v = qkv.astype(np.float64).reshape(tokens, 3, -1, head_dim).transpose(1, 2, 0, 3)
    scores = q @ k.swapaxes(1, 2) / math.sqrt(head_dim)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    context: Float64 = (weights @ v).swapaxes(0, 1).reshape(tokens, -1)
    return context


def states_of(
    encoder: Encoder, texts: Sequence[Sequence[int]], second_starts: Sequence[int] = ()
) -> list[Float32]:
    """Return the encoder's states before pooling: f32[tokens, hidden] per text."""
    out: dict[int, Float32] = {}

    def finish(hidden: Float32, index: int) -> None:
        out[index] = hidden.copy()

    encoder._run([encoder.check(ids) for ids in texts], second_starts, finish)
    return [out[index] for index in range(len(texts))]


def encode(file: BertFile, token_ids: list[int], second: int | None = None) -> Float64:
    """Return the last layer's states of one sequence: f64[tokens, hidden].

    `second` is the number of tokens before its second part, if it has one.
    """
    config = file.config
    parts = np.arange(len(token_ids)) >= (len(token_ids) if second is None else second)
    parts &= config.parts > 1
    places = config.first_position + np.arange(len(token_ids))
    positions = file.positions()[parts.astype(int), places]
    gamma, beta = file.norm()
    hidden = layer_norm(file.words()[token_ids] + positions, gamma, beta, config.layer_norm_eps)
    for index in range(config.num_hidden_layers):
        hidden = _layer(hidden, file.layer(index), config.head_dim, config.layer_norm_eps)
    return hidden


def _layer(hidden: Float64, layer: list[Float32], head_dim: int, epsilon: float) -> Float64:
    qkv, qkv_bias, out, out_bias, out_gamma, out_beta, *feed_forward = layer
    up, up_bias, down, down_bias, down_gamma, down_beta = feed_forward
    context = attend(hidden @ qkv.T + qkv_bias, head_dim)
    attended = context @ out.T + out_bias + hidden
    hidden = layer_norm(attended, out_gamma, out_beta, epsilon)
    inner = gelu(hidden @ up.T + up_bias)
    lowered = inner @ down.T + down_bias + hidden
    return layer_norm(lowered, down_gamma, down_beta, epsilon)


def pool(hidden: NDArray[Any], pooling: str, *, normalize: bool) -> Float64:
    """Return one vector for a sequence: f[tokens, hidden] to f64[hidden]."""
    wide = hidden.astype(np.float64)
    vectors: dict[str, Float64] = {
        "mean": wide.mean(axis=0),
        "cls": wide[0],
        "max": wide.max(axis=0),
        "last": wide[-1],
    }
    vector = vectors[pooling]
    return vector / max(float(np.linalg.norm(vector)), 1e-12) if normalize else vector


def classify(state: NDArray[Any], head: ClassifierHead) -> Float64:
    """Return one score per class: f[hidden] to f64[classes]."""
    inner = head.dense.astype(np.float64) @ state.astype(np.float64) + head.dense_bias
    inner = np.maximum(inner, 0.0) if head.rectifies else np.tanh(inner)
    scores: Float64 = head.out.astype(np.float64) @ inner + head.out_bias
    return scores
