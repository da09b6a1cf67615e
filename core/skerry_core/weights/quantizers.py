"""Rows of weights in fewer bits, as GGML's formats have them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from skerry_core.weights.tensors import Bytes, FileTensor, Float32, dequantize, five_bits

_FOUR = np.uint8(4)


def quantize_q8_0(values: Float32) -> Bytes:
    """Quantise rows f32[n, columns] in blocks of 32 to u8[n, bytes], like ggml: d = max |x| / 127
    in f16, quants rounded half away from zero."""
    blocks = values.reshape(-1, 32)
    with np.errstate(all="ignore"):  # what is not a number stays so: its scale is none
        scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
        scaled = blocks * np.where(scale == 0, np.float32(0), 1 / scale)
        quants = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8)
    halves = scale.astype(np.float16).view(np.uint8)
    joined: Bytes = np.concatenate([halves, quants.view(np.uint8)], axis=1)
    return joined.reshape(len(values), -1)


def quantize_q4_0(values: Float32) -> Bytes:
    """Quantise rows as `quantize_q8_0` does, to 4 bits: d = the value furthest from 0, by -8."""
    blocks = values.reshape(-1, 32)
    with np.errstate(all="ignore"):
        furthest = np.abs(blocks).argmax(axis=1, keepdims=True)
        scale = np.take_along_axis(blocks, furthest, axis=1) / np.float32(-8)
        scaled = blocks * np.where(scale == 0, np.float32(0), 1 / scale)
        quants = np.minimum(np.trunc(scaled + np.float32(8.5)), 15).astype(np.uint8)
    return _joined(values, [scale], quants)


def quantize_q4_1(values: Float32) -> Bytes:
    """Quantise rows to 4 bits from the least value on, in 15 equal steps to the greatest."""
    blocks = values.reshape(-1, 32)
    with np.errstate(all="ignore"):
        least = blocks.min(axis=1, keepdims=True)
        scale = (blocks.max(axis=1, keepdims=True) - least) / np.float32(15)
        scaled = (blocks - least) * np.where(scale == 0, np.float32(0), 1 / scale)
        quants = np.minimum(np.trunc(scaled + np.float32(0.5)), 15).astype(np.uint8)
    return _joined(values, [scale, least], quants)


def _joined(values: Float32, numbers: list[Float32], quants: Bytes) -> Bytes:
    """Join each block's f16 numbers with its nibbles: values 0 to 15 low, 16 to 31 high."""
    halves = [number.astype(np.float16).view(np.uint8) for number in numbers]
    nibbles = quants[:, :16] | (quants[:, 16:] << _FOUR)
    joined: Bytes = np.concatenate([*halves, nibbles], axis=1)
    return joined.reshape(len(values), -1)


QUANTIZERS: dict[str, Callable[[Float32], Bytes]] = {
    "Q8_0": quantize_q8_0,
    "Q4_0": quantize_q4_0,
    "Q4_1": quantize_q4_1,
}


def in_format(tensor: FileTensor, rows: Bytes, format_: str) -> Bytes:
    """Return some rows u8[n, bytes] of a tensor in another format: F32, one of QUANTIZERS, and of
    Q5_0 exactly Q8_0."""
    if tensor.format == format_:
        return rows
    if (tensor.format, format_) == ("Q5_0", "Q8_0"):
        return _q5_0_as_q8_0(rows)
    shape = (len(rows), tensor.shape[-1])
    values = dequantize(FileTensor(tensor.format, shape, rows.reshape(-1)))
    quantize = QUANTIZERS.get(format_)
    return values.view(np.uint8) if quantize is None else quantize(values)


def _q5_0_as_q8_0(rows: Bytes) -> Bytes:
    """Return rows u8[n, bytes] of Q5_0 as Q8_0, the same values with the same scales."""
    blocks = rows.reshape(len(rows), -1, 22)
    quants = five_bits(blocks[..., 2:6], blocks[..., 6:]) - np.uint8(16)
    joined: Bytes = np.concatenate([blocks[..., :2], quants], axis=-1)
    return joined.reshape(len(rows), -1)
