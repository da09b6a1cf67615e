"""Tensors as weight files hold them, and what their formats mean: `dequantize` in NumPy.

The quantised formats are GGML's: rows of blocks, each with its own scales (ggml-common.h).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_LOW, _FOUR = np.uint8(0xF), np.uint8(4)


class WeightsError(ValueError):
    """A weight file that cannot be used; the message names the file, and the tensor if one is."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array of a weight file, still in the file's format."""

    name: str
    format: str  # a key of FORMATS
    shape: tuple[int, ...]  # in elements, slowest first: a matrix is [rows (outputs), columns]
    data: Bytes  # u8[nbytes], row after row; often a read-only view of the mapped file

    @property
    def rows(self) -> Bytes:
        """u8[rows, bytes per row]: rows never share a block."""
        return self.data.reshape(prod(self.shape[:-1]), -1)


class Format(NamedTuple):
    block_size: int  # elements
    block_bytes: int
    decode: Callable[[Bytes], NDArray[np.generic]]  # u8[n, block_bytes] -> [n, block_size]


def row_bytes(format_: str, columns: int) -> int:
    """Bytes of one row. Raises ValueError unless whole blocks fill it."""
    block_size, block_bytes, _ = FORMATS[format_]
    if columns % block_size:
        raise ValueError(f"{columns} columns are not whole {format_} blocks of {block_size}")
    return columns // block_size * block_bytes


def dequantize(tensor: Tensor) -> Float32:
    """The tensor's values as a new f32 array of its shape."""
    _, block_bytes, decode = FORMATS[tensor.format]
    blocks = tensor.data.reshape(-1, block_bytes)
    return decode(blocks).astype(np.float32).reshape(tensor.shape)


def _f16(data: Bytes) -> Float32:
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def _nibbles(data: Bytes) -> Bytes:
    """u8[n, k] -> u8[n, 2 k]: all low nibbles, then all high ones."""
    nibbles: Bytes = np.concatenate([data & _LOW, data >> _FOUR], axis=1)
    return nibbles


def _f32_values(blocks: Bytes) -> Float32:
    return np.ascontiguousarray(blocks).view(np.float32)


def _bf16_values(blocks: Bytes) -> Float32:
    return (np.ascontiguousarray(blocks).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Bytes) -> Float32:
    return _f16(blocks[:, :2]) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Float32:
    return _f16(blocks[:, :2]) * _nibbles(blocks[:, 4:]) + _f16(blocks[:, 2:4])


def _q8_0(blocks: Bytes) -> Float32:
    return _f16(blocks[:, :2]) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_k_scales(packed: Bytes) -> tuple[Float32, Float32]:
    """Scales and minima of 8 sub-blocks, 6 bits each, out of 12 bytes: u8[n, 12] -> f32[n, 8]."""
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = [low & 0x3F, (high & 0xF) | ((low >> 6) << 4)]
    minima = [middle & 0x3F, (high >> 4) | ((middle >> 6) << 4)]
    return (
        np.concatenate(scales, axis=1).astype(np.float32),
        np.concatenate(minima, axis=1).astype(np.float32),
    )


def _k_quants(blocks: Bytes, quants: Bytes) -> Float32:
    """Q4_K and Q5_K: quants u8[n, 8, 32], each sub-block with a scale and a minimum."""
    scales, minima = _q4_k_scales(blocks[:, 4:16])
    scales = _f16(blocks[:, :2]) * scales
    minima = _f16(blocks[:, 2:4]) * minima
    values: Float32 = quants.astype(np.float32)
    values *= scales[:, :, None]
    values -= minima[:, :, None]
    return values.reshape(len(blocks), 256)


def _q4_k(blocks: Bytes) -> Float32:
    pairs = blocks[:, 16:].reshape(-1, 4, 32)  # sub-block 2 j low, 2 j + 1 high
    return _k_quants(blocks, np.stack([pairs & _LOW, pairs >> _FOUR], axis=2).reshape(-1, 8, 32))


def _q5_k(blocks: Bytes) -> Float32:
    fifth = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    pairs = blocks[:, 48:].reshape(-1, 4, 32)
    low = np.stack([pairs & _LOW, pairs >> _FOUR], axis=2).reshape(-1, 8, 32)
    return _k_quants(blocks, low | (fifth << _FOUR))


def _q6_k(blocks: Bytes) -> Float32:
    packed = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([packed & 0xF, packed >> 4], axis=2).reshape(-1, 8, 32)
    packed = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high = (packed >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    quants = (low | (high.reshape(-1, 8, 32) << 4)).view(np.int8) - np.int8(32)
    scales = _f16(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    values: Float32 = scales[:, :, None] * quants.reshape(-1, 16, 16)
    return values.reshape(-1, 256)


FORMATS: dict[str, Format] = {
    "F32": Format(1, 4, _f32_values),
    "F16": Format(1, 2, _f16),
    "BF16": Format(1, 2, _bf16_values),
    "Q4_0": Format(32, 18, _q4_0),
    "Q4_1": Format(32, 20, _q4_1),
    "Q8_0": Format(32, 34, _q8_0),
    "Q4_K": Format(256, 144, _q4_k),
    "Q5_K": Format(256, 176, _q5_k),
    "Q6_K": Format(256, 210, _q6_k),
}


def check_shapes(
    tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], file: str
) -> None:
    """Raise WeightsError unless the tensors are exactly the expected ones."""
    for name, shape in expected.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise WeightsError(f"{file}: tensor {name!r} is missing")
        if tensor.shape != shape:
            raise WeightsError(
                f"{file}: tensor {name!r} has shape {tensor.shape}, the model needs {shape}"
            )
    for name in tensors:
        if name not in expected:
            raise WeightsError(f"{file}: tensor {name!r} has no place in a model that is supported")
