"""Weights of quantised safetensors as rows of blocks, 32 values and what they share side by side.

Checkpoints keep codes, scales and zero points in tensors of their own, and words of eight 4-bit
codes in an order for some GPU's kernel. Two formats here are ours, since GGML has none that keeps
such values exactly: FP8, and UINT4 with whole zero points (`tensors.FORMATS`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skerry_core.weights.tensors import Bytes, Float32

_AWQ_COLUMNS = [0, 4, 1, 5, 2, 6, 3, 7]  # which nibble of a word has column 0, 1, …


def nibbles(words: NDArray[Any]) -> Bytes:
    """Take words i32[..., n] apart: u8[..., n, 8], lowest bits first."""
    by_byte = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
    pairs: Bytes = np.stack([by_byte & np.uint8(15), by_byte >> np.uint8(4)], axis=-1)
    return pairs.reshape(*words.shape, 8)


def awq_codes(words: NDArray[Any]) -> Bytes:
    """Return codes u8[outputs, rows] of AWQ's i32[rows, outputs / 8] (Lin et al., 2024; "gemm")."""
    return nibbles(words)[..., _AWQ_COLUMNS].reshape(len(words), -1).T


def gptq_codes(words: NDArray[Any]) -> Bytes:
    """Return codes u8[outputs, inputs] of GPTQ's i32[inputs / 8, outputs] (Frantar et al.)."""
    return nibbles(words).transpose(1, 0, 2).reshape(words.shape[1], -1)


def gptq_zeros(words: NDArray[Any], *, less_one: bool) -> Bytes:
    """Return zero points u8[outputs, groups] of i32[groups, outputs / 8]; `less_one`: as the files
    of GPTQ's first form have them."""
    return nibbles(words).reshape(len(words), -1).T + np.uint8(less_one)


def packed_codes(words: NDArray[Any]) -> Bytes:
    """Return codes u8[outputs, inputs] of compressed-tensors' i32[outputs, inputs / 8]."""
    return nibbles(words).reshape(len(words), -1)


def packed_zeros(words: NDArray[Any], outputs: int) -> Bytes:
    """Return zero points u8[outputs, groups] of i32[outputs / 8, groups]."""
    return nibbles(words).transpose(0, 2, 1).reshape(-1, words.shape[1])[:outputs]


def uint4_rows(codes: Bytes, scales: Float32, zeros: Bytes) -> Bytes:
    """Return UINT4 blocks u8[outputs, bytes] of codes u8[outputs, inputs], and scales and zero
    points [outputs, groups] of neighbours. Scales become f16, which those of AWQ and GPTQ are.

    Raises OverflowError for a scale beyond f16.
    """
    head = [_per_block(each, codes.shape[1]) for each in (_halves(scales), zeros[..., None])]
    return _blocks(head, codes)


def q4_0_rows(codes: Bytes, scales: Float32) -> Bytes:
    """Return Q4_0 blocks of codes whose zero points are all 8; as `uint4_rows`."""
    return _blocks([_per_block(_halves(scales), codes.shape[1])], codes)


def fp8_rows(values: Bytes, scales: Float32) -> Bytes:
    """Return FP8 blocks u8[outputs, bytes] of e4m3fn [outputs, inputs], and scales f32[outputs,
    groups] of neighbours."""
    outputs, inputs = values.shape
    head = np.ascontiguousarray(scales)[..., None].view(np.uint8)
    parts = [_per_block(head, inputs), values.reshape(outputs, -1, 32)]
    return np.concatenate(parts, axis=-1).reshape(outputs, -1)


def mxfp4_rows(blocks: Bytes, scales: Bytes) -> Bytes:
    """Return GGML's MXFP4 blocks u8[rows, bytes] of gpt-oss's u8[..., inputs / 32, 16], in which
    neighbours share a byte, and exponents u8[..., inputs / 32]."""
    codes = np.stack([blocks & np.uint8(15), blocks >> np.uint8(4)], axis=-1)
    codes = codes.reshape(-1, blocks.shape[-2], 32)
    joined = codes[..., :16] | (codes[..., 16:] << np.uint8(4))
    rows = np.concatenate([scales.reshape(*codes.shape[:2], 1), joined], axis=-1)
    return rows.reshape(len(rows), -1)


def _halves(scales: Float32) -> Bytes:
    """Return f32[outputs, groups] as the bytes of f16, u8[outputs, groups, 2]."""
    with np.errstate(over="ignore"):
        halves = np.ascontiguousarray(scales).astype(np.float16)
    if not np.isfinite(halves).all():
        raise OverflowError("a scale is beyond 65504")
    return halves[..., None].view(np.uint8)


def _per_block(values: Bytes, inputs: int) -> Bytes:
    """Repeat u8[outputs, groups, bytes] for each block of 32: u8[outputs, inputs / 32, bytes]."""
    return np.repeat(values, inputs // 32 // values.shape[1], axis=1)


def _blocks(head: list[Bytes], codes: Bytes) -> Bytes:
    by_block = codes.reshape(len(codes), -1, 32)
    packed = by_block[..., :16] | (by_block[..., 16:] << np.uint8(4))
    return np.concatenate([*head, packed], axis=-1).reshape(len(codes), -1)
