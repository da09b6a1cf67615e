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

from skerry_core.weights.super_blocks import K_FORMATS, SUPER_BLOCK, KFormat

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


def quantize_q8_0(values: Float32) -> Bytes:
    """Rows f32[n, columns] in blocks of 32 as u8[n, bytes], like ggml: d = max |x| / 127 in f16,
    quants rounded half away from zero."""
    blocks = values.reshape(-1, 32)
    with np.errstate(all="ignore"):  # what is not a number stays so: its scale is none
        scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
        scaled = blocks * np.where(scale == 0, np.float32(0), 1 / scale)
        quants = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8)
    halves = scale.astype(np.float16).view(np.uint8)
    joined: Bytes = np.concatenate([halves, quants.view(np.uint8)], axis=1)
    return joined.reshape(len(values), -1)


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


def _values_of(k_format: KFormat) -> Callable[[Bytes], Float32]:
    return lambda blocks: k_format.split(blocks).values()


FORMATS: dict[str, Format] = {
    "F32": Format(1, 4, _f32_values),
    "F16": Format(1, 2, _f16),
    "BF16": Format(1, 2, _bf16_values),
    "Q4_0": Format(32, 18, _q4_0),
    "Q4_1": Format(32, 20, _q4_1),
    "Q8_0": Format(32, 34, _q8_0),
} | {
    name: Format(SUPER_BLOCK, k_format.block_bytes, _values_of(k_format))
    for name, k_format in K_FORMATS.items()
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
