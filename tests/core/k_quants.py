"""A plain quantiser to GGML's formats that gguf-py can only read: for models of tests."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]


def quantize_k(values: NDArray[Any], format_: str) -> Bytes:
    """Rows f32[n, columns] as u8[n, bytes]; 256 divides the columns, 32 those of IQ4_NL."""
    if format_ == "IQ4_NL":
        return _iq4_nl(values.reshape(-1, 32).astype(np.float32)).reshape(len(values), -1)
    blocks = values.reshape(-1, 256).astype(np.float32)
    if format_ == "IQ4_XS":
        return _iq4_xs(blocks).reshape(len(values), -1)
    raw = _q6_k(blocks) if format_ == "Q6_K" else _with_minima(blocks, format_)
    return raw.reshape(len(values), -1)


def _f16(values: Float32) -> tuple[Bytes, Float32]:
    """Scales f32[n, 1] as bytes u8[n, 2], and what is left of them."""
    halves = values.astype(np.float16)
    return halves.view(np.uint8), halves.astype(np.float32)


def _with_minima(blocks: Float32, format_: str) -> Bytes:
    parts = blocks.reshape(-1, 8, 32)
    most = 15 if format_ == "Q4_K" else 31
    minima = np.maximum(0, -parts.min(axis=2))
    ranges = (parts.max(axis=2) + minima) / most
    d_bytes, d = _f16(ranges.max(axis=1, keepdims=True) / 63)
    m_bytes, dmin = _f16(minima.max(axis=1, keepdims=True) / 63)
    scales = np.maximum(1, np.rint(ranges / d)).astype(np.uint8)
    mins = np.rint(minima / np.maximum(dmin, 1e-9)).astype(np.uint8)
    shifted = parts + (dmin * mins)[..., None]
    quants = np.clip(np.rint(shifted / (d * scales)[..., None]), 0, most).astype(np.uint8)
    packed = [
        scales[:, :4] | (scales[:, 4:] >> 4 << 6),
        mins[:, :4] | (mins[:, 4:] >> 4 << 6),
        (scales[:, 4:] & 15) | ((mins[:, 4:] & 15) << 4),
    ]
    low = quants & 15
    nibbles = (low[:, ::2] | (low[:, 1::2] << 4)).reshape(-1, 128)
    fifth = np.bitwise_or.reduce((quants >> 4) << np.arange(8, dtype=np.uint8)[:, None], axis=1)
    high = [] if format_ == "Q4_K" else [fifth]
    return np.concatenate([d_bytes, m_bytes, *packed, *high, nibbles], axis=1)


def _q6_k(blocks: Float32) -> Bytes:
    parts = blocks.reshape(-1, 16, 16)
    largest = np.abs(parts).max(axis=2) / 31
    d_bytes, d = _f16(largest.max(axis=1, keepdims=True) / 127)
    scales = np.maximum(1, np.rint(largest / d)).astype(np.int8)
    quants = np.clip(np.rint(parts / (d * scales)[..., None]), -32, 31) + 32
    halves = quants.astype(np.uint8).reshape(-1, 2, 4, 32)  # of 128 values: four runs of 32
    low, high = halves & 15, halves >> 4
    nibbles = np.concatenate(
        [low[:, :, 0] | (low[:, :, 2] << 4), low[:, :, 1] | (low[:, :, 3] << 4)], axis=2
    )
    pairs = np.bitwise_or.reduce(high << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=2)
    flat = [nibbles.reshape(-1, 128), pairs.reshape(-1, 64), scales.view(np.uint8), d_bytes]
    return np.concatenate(flat, axis=1)


def _codes(shares: Float32) -> Bytes:
    """The codes of IQ4 whose values are the nearest; two values of 32 in a byte."""
    table = np.array(gguf.quants.IQ4_NL.kvalues, np.float32)
    codes = np.abs(shares[..., None] - table).argmin(axis=-1).astype(np.uint8)
    return codes[..., :16] | (codes[..., 16:] << 4)


def _iq4_nl(blocks: Float32) -> Bytes:
    d_bytes, d = _f16(np.abs(blocks).max(axis=1, keepdims=True) / 120)
    return np.concatenate([d_bytes, _codes(blocks / d)], axis=1)


def _iq4_xs(blocks: Float32) -> Bytes:
    parts = blocks.reshape(-1, 8, 32)
    largest = np.abs(parts).max(axis=2) / 120
    d_bytes, d = _f16(largest.max(axis=1, keepdims=True) / 31)
    scales = np.maximum(1, np.rint(largest / d)).astype(np.uint8)
    codes = _codes(parts / (d * scales)[..., None])
    stored = scales + np.uint8(32)
    low = (stored[:, ::2] & 15) | (stored[:, 1::2] << 4)
    shifts = 2 * np.arange(8, dtype=np.uint16)
    high = np.bitwise_or.reduce((stored >> 4).astype(np.uint16) << shifts, axis=1, keepdims=True)
    return np.concatenate([d_bytes, high.view(np.uint8), low, codes.reshape(-1, 128)], axis=1)
