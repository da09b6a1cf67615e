"""The meaning of the CPU kernels in NumPy, operation by operation: equal to them bit for bit.

Slow, and free of layouts: matrices are [rows, columns], K and V are [tokens, head_dim].
"""

from __future__ import annotations

import numpy as np

from skerry_core.config import BLOCK_SIZE
from skerry_core.exact_math import exp_f32, fma_f32, tanh_f32
from skerry_core.kernels.matmul.layout import BLOCK, WeightFormat
from skerry_core.kernels.simd.aliases import Float16, Float32, Int8, Int32, UInt8
from skerry_core.kernels.simd.emitter import F16_MAX, LANES
from skerry_core.weights.codebooks import half_powers, looked_up
from skerry_core.weights.super_blocks import SUPER_BLOCK_FORMATS
from skerry_core.weights.tensors import FORMATS, five_bits

_TINY = np.float32(1e-30)
_MAX_QUANT = np.float32(127.0)


def quantize(x: Float32) -> tuple[Int8, Float32]:
    """Quantise activations to q `i8[..., K]` and scales `f32[..., K / 32]` with x ~ scale * q.

    scale = max |x| / 127, q = round(x * (127 / max |x|)), ties to even, per block of 32.
    """
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    largest = np.abs(blocks).max(axis=-1)
    is_zero = largest < _TINY
    safe = np.where(is_zero, np.float32(1.0), largest)
    scale = np.where(is_zero, np.float32(0.0), safe / _MAX_QUANT)
    inverse = np.where(is_zero, np.float32(0.0), _MAX_QUANT / safe)
    q = np.rint(blocks * inverse[..., None]).astype(np.int8)
    return q.reshape(x.shape), scale


def unpack_blocks(raw: UInt8, format_: WeightFormat) -> tuple[Int32, Float32, Float32 | None]:
    """Unpack GGML rows `u8[N, bytes]`: integers `i32[N, P, W]`, scales d `f32[N, P]`, minima m.

    A weight is `d * q + m`; m is None in formats without. W values share a scale: 32, or 16 (Q6_K).
    """
    if format_.has_super_blocks:
        return _unpack_super_blocks(raw, format_)
    scale_bytes = format_.row_scale_bytes
    blocks = raw.reshape(len(raw), -1, FORMATS[format_.name].block_bytes)
    quants = blocks[..., scale_bytes:]
    if format_ is WeightFormat.MXFP4:
        nibbles: UInt8 = np.concatenate([quants & np.uint8(15), quants >> np.uint8(4)], axis=-1)
        powers = half_powers(blocks[..., 0])
        return looked_up(nibbles, "MXFP4").astype(np.int32), powers, None
    if format_ is WeightFormat.UINT4:
        q = np.concatenate([quants & 15, quants >> 4], axis=-1).astype(np.int32)
        d = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)[..., 0]
        return q, d, d * -blocks[..., 2].astype(np.float32)
    scales = np.ascontiguousarray(blocks[..., :scale_bytes]).view(np.float16).astype(np.float32)
    if format_ is WeightFormat.Q8_0:
        return quants.view(np.int8).astype(np.int32), scales[..., 0], None
    if format_ is WeightFormat.Q5_1:
        q = five_bits(quants[..., :4], quants[..., 4:]).astype(np.int32)
        return q, scales[..., 0], scales[..., 1]
    q = np.concatenate([quants & 15, quants >> 4], axis=-1).astype(np.int32)
    if format_ is WeightFormat.IQ4_NL:
        return looked_up(q.astype(np.uint8), "IQ4_NL").astype(np.int32), scales[..., 0], None
    if format_ is WeightFormat.Q4_0:
        return q - 8, scales[..., 0], None
    return q, scales[..., 0], scales[..., 1]


def _unpack_super_blocks(
    raw: UInt8, format_: WeightFormat
) -> tuple[Int32, Float32, Float32 | None]:
    """Unpack rows of a K format as `unpack_blocks` does."""
    block_bytes, split = SUPER_BLOCK_FORMATS[format_.name]
    rows = len(raw)
    parts = split(raw.reshape(-1, block_bytes))
    d = (parts.d[:, None] * parts.scales).reshape(rows, -1)
    q = parts.quants.astype(np.int32).reshape(rows, d.shape[1], -1)
    if parts.dmin is None or parts.minima is None:
        return q, d, None
    return q, d, (parts.dmin[:, None] * -parts.minima).reshape(rows, -1)


def matmul(raw: UInt8, format_: WeightFormat, x: Float32) -> Float32:
    """Multiply rows of GGML blocks `u8[N, bytes]` by activations `f32[T, K]`: `f32[T, N]`.

    Quantised weights meet quantised activations; sums run in block order (see `kernels.matmul`).
    Float weights sum in column order.
    """
    if not format_.is_quantized:
        dtype = np.float16 if format_ is WeightFormat.F16 else np.float32
        weights = np.ascontiguousarray(raw).view(dtype).astype(np.float32)
        total = np.zeros((len(x), len(raw)), np.float32)
        for k in range(x.shape[1]):
            total = fma_f32(weights[None, :, k], x[:, None, k], total)
        return total
    q, d, m = unpack_blocks(raw, format_)
    a, a_scale = quantize(x)
    a_parts = a.reshape(len(x), *q.shape[1:]).astype(np.int32)
    a_scale = np.repeat(a_scale, BLOCK // q.shape[2], axis=1)
    scaled_sums = a_scale * a_parts.sum(axis=-1).astype(np.float32)
    total = np.zeros((len(x), len(raw)), np.float32)
    for b in range(q.shape[1]):
        products = (a_parts[:, b] @ q[:, b].T).astype(np.float32)
        total = fma_f32(products, d[None, :, b] * a_scale[:, None, b], total)
        if m is not None:
            total = fma_f32(m[None, :, b], scaled_sums[:, None, b], total)
    return total


def _fold_sum(lanes: Float32) -> Float32:
    """Sum the last axis, halves onto halves."""
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def rms_norm(x: Float32, weight: Float32, eps: float) -> Float32:
    """Compute `x / sqrt(mean(x^2) + eps) * weight` over the last axis."""
    lanes = np.zeros((*x.shape[:-1], LANES), np.float32)
    for start in range(0, x.shape[-1], LANES):
        part = x[..., start : start + LANES]
        lanes = fma_f32(part, part, lanes)
    mean = _fold_sum(lanes) / np.float32(x.shape[-1])
    inverse = np.divide(np.float32(1.0), np.sqrt(mean + np.float32(eps)))
    return x * inverse[..., None] * weight


def rope(x: Float32, cosines: Float32, sines: Float32) -> Float32:
    """Rotate pairs (i, i + D / 2) of `f32[..., D]` by angles given as `f32[..., D / 2]`."""
    a, b = np.split(x, 2, axis=-1)
    rotated = fma_f32(a, cosines, -(b * sines)), fma_f32(b, cosines, a * sines)
    return np.concatenate(rotated, axis=-1)


def swiglu(gate: Float32, up: Float32) -> Float32:
    """Compute `silu(gate) * up`."""
    return np.divide(gate, np.float32(1.0) + exp_f32(-gate)) * up


def to_half(x: Float32) -> Float16:
    """Round as KV is stored: to nearest even, clamped to float16's finite range."""
    return np.clip(x, -F16_MAX, F16_MAX).astype(np.float16)


def attention(
    query: Float32, keys: Float16, values: Float16, first: int = 0, score_cap: float = 0.0
) -> Float32:
    """Attend with one query `f32[D]`, scaled, to its context `f16[n, D]` from token `first` < n on.

    A partial per 64 tokens, merged in block order. Without a cap scores stay as they are.
    """
    state = np.zeros(values.shape[1], np.float32), np.float32(-np.inf), np.float32(0.0)
    for start in range(first // BLOCK_SIZE * BLOCK_SIZE, len(keys), BLOCK_SIZE):
        block = slice(start, start + BLOCK_SIZE)
        hidden = max(0, first - start)
        partial = _attention_partial(query, keys[block], values[block], hidden, score_cap)
        state = _merge(state, partial)
    acc, _, total = state
    return acc * (np.float32(1.0) / total)


def _attention_partial(
    query: Float32, keys: Float16, values: Float16, hidden: int, score_cap: float
) -> tuple[Float32, np.float32, np.float32]:
    """Return (acc, m, l) of one block, whose first `hidden` tokens are not seen."""
    scores = np.zeros(len(keys), np.float32)
    for d in range(len(query)):
        scores = fma_f32(keys[:, d].astype(np.float32), query[d], scores)
    if score_cap:
        scores = np.float32(score_cap) * tanh_f32(scores / np.float32(score_cap))
    m = scores[hidden:].max()
    p = np.zeros(BLOCK_SIZE, np.float32)
    p[hidden : len(keys)] = exp_f32(scores[hidden:] - m)
    lanes = np.zeros(LANES, np.float32)
    for vector in p.reshape(-1, LANES):
        lanes = lanes + vector
    acc = np.zeros(values.shape[1], np.float32)
    for s in range(hidden, len(values)):
        acc = fma_f32(values[s].astype(np.float32), p[s], acc)
    return acc, m, np.float32(_fold_sum(lanes))


def _merge(
    state: tuple[Float32, np.float32, np.float32], partial: tuple[Float32, np.float32, np.float32]
) -> tuple[Float32, np.float32, np.float32]:
    (acc, m, total), (block_acc, block_m, block_total) = state, partial
    largest = max(m, block_m)
    keep, add = exp_f32(m - largest), exp_f32(block_m - largest)
    merged: np.float32 = np.float32(fma_f32(total, keep, block_total * add))
    return fma_f32(acc, keep, block_acc * add), largest, merged
