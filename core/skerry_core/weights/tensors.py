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

from skerry_core.weights.codebooks import half_powers, looked_up
from skerry_core.weights.super_blocks import SUPER_BLOCK, SUPER_BLOCK_FORMATS, SuperBlockFormat

Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_LOW, _FOUR = np.uint8(0xF), np.uint8(4)


class WeightsError(ValueError):
    """A weight file that cannot be used; the message names the file, and the tensor if one is."""


class TruncatedFile(WeightsError):
    """A file that ends before its header does."""


@dataclass(frozen=True, slots=True)
class FileTensor:
    """An array of a weight file, still in the file's format."""

    format: str  # a key of FORMATS
    shape: tuple[int, ...]  # in elements, slowest first: a matrix is [rows (outputs), columns]
    # Of `data` or `by_row`; what makes it, where it is not in the file so; or tensors below one
    # another.
    source: Bytes | Callable[[], Bytes] | tuple[FileTensor, ...]

    @property
    def by_row(self) -> Bytes:
        """Return u8[..., rows, bytes per row], perhaps views where the file has them: bytes that
        are not looked at are not read, unless the tensor has to be made."""
        if isinstance(self.source, tuple):
            return np.stack([part.by_row for part in self.source])
        made = self.source() if callable(self.source) else self.source
        return made.reshape(*self.shape[:-1], -1)

    @property
    def data(self) -> Bytes:
        """Return u8[nbytes], row after row; often a read-only view of the mapped file."""
        if isinstance(self.source, tuple):
            return np.concatenate([part.data for part in self.source])
        made = self.source() if callable(self.source) else self.source
        return np.ascontiguousarray(made).reshape(-1)

    @property
    def rows(self) -> Bytes:
        """Return u8[rows, bytes per row]: rows never share a block."""
        return self.data.reshape(prod(self.shape[:-1]), -1)

    def parts(self) -> tuple[FileTensor, ...]:
        """Return the tensors below one another that it is made of, or itself: each is made when its
        data are read."""
        return self.source if isinstance(self.source, tuple) else (self,)


class Format(NamedTuple):
    block_size: int  # elements
    block_bytes: int
    decode: Callable[[Bytes], NDArray[np.generic]]  # u8[n, block_bytes] -> [n, block_size]


def row_bytes(format_: str, columns: int) -> int:
    """Return bytes of one row. Raises ValueError unless whole blocks fill it."""
    block_size, block_bytes, _ = FORMATS[format_]
    if columns % block_size:
        raise ValueError(f"{columns} columns are not whole {format_} blocks of {block_size}")
    return columns // block_size * block_bytes


def dequantize(tensor: FileTensor) -> Float32:
    """Return the tensor's values as a new f32 array of its shape."""
    _, block_bytes, decode = FORMATS[tensor.format]
    blocks = tensor.data.reshape(-1, block_bytes)
    return decode(blocks).astype(np.float32).reshape(tensor.shape)


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


def _f16(data: Bytes) -> Float32:
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def _nibbles(data: Bytes) -> Bytes:
    """Split u8[n, k] to u8[n, 2 k]: all low nibbles, then all high ones."""
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


def five_bits(fifths: Bytes, nibbles: Bytes) -> Bytes:
    """Join u8[..., 16] of nibbles and the fifth bits of the same 32 values, u8[..., 4], to u8[...,
    32]."""
    fifth = np.unpackbits(fifths, axis=-1, bitorder="little")
    low = np.concatenate([nibbles & _LOW, nibbles >> _FOUR], axis=-1)
    joined: Bytes = low | (fifth << _FOUR)
    return joined


def _q5_0(blocks: Bytes) -> Float32:
    return _f16(blocks[:, :2]) * (five_bits(blocks[:, 2:6], blocks[:, 6:]).astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Float32:
    quants = five_bits(blocks[:, 4:8], blocks[:, 8:]).astype(np.float32)
    return _f16(blocks[:, :2]) * quants + _f16(blocks[:, 2:4])


def _iq4_nl(blocks: Bytes) -> Float32:
    return _f16(blocks[:, :2]) * looked_up(_nibbles(blocks[:, 2:]), "IQ4_NL").astype(np.float32)


def _mxfp4(blocks: Bytes) -> Float32:
    values = looked_up(_nibbles(blocks[:, 1:]), "MXFP4").astype(np.float32)
    return half_powers(blocks[:, :1]) * values


def _q5_0_as_q8_0(rows: Bytes) -> Bytes:
    """Return rows u8[n, bytes] of Q5_0 as Q8_0, the same values with the same scales."""
    blocks = rows.reshape(len(rows), -1, 22)
    quants = five_bits(blocks[..., 2:6], blocks[..., 6:]) - np.uint8(16)
    joined: Bytes = np.concatenate([blocks[..., :2], quants], axis=-1)
    return joined.reshape(len(rows), -1)


def _uint4(blocks: Bytes) -> Float32:
    quants = _nibbles(blocks[:, 3:]).astype(np.int16) - blocks[:, 2:3].astype(np.int16)
    return _f16(blocks[:, :2]) * quants.astype(np.float32)


def _fp8(blocks: Bytes) -> Float32:
    scales = np.ascontiguousarray(blocks[:, :4]).view(np.float32)
    values: Float32 = scales * _E4M3_VALUES[blocks[:, 4:]]
    return values


def _e4m3_values() -> Float32:
    """Return what the 256 bytes of e4m3fn mean (Micikevicius et al., 2022)."""
    codes = np.arange(256)
    exponents, fractions = codes >> 3 & 15, codes & 7
    normal = (8 + fractions) * 2.0 ** (exponents - 10.0)
    values = np.where(exponents > 0, normal, fractions * 2.0**-9) * np.where(codes < 128, 1, -1)
    values[codes & 127 == 127] = np.nan
    return values.astype(np.float32)


_E4M3_VALUES = _e4m3_values()


def _values_of(format_: SuperBlockFormat) -> Callable[[Bytes], Float32]:
    return lambda blocks: format_.split(blocks).values()


FORMATS: dict[str, Format] = {
    "F32": Format(1, 4, _f32_values),
    "F16": Format(1, 2, _f16),
    "BF16": Format(1, 2, _bf16_values),
    "Q4_0": Format(32, 18, _q4_0),
    "Q4_1": Format(32, 20, _q4_1),
    "Q5_0": Format(32, 22, _q5_0),
    "Q5_1": Format(32, 24, _q5_1),
    "Q8_0": Format(32, 34, _q8_0),
    "IQ4_NL": Format(32, 18, _iq4_nl),
    "MXFP4": Format(32, 17, _mxfp4),
    # Ours, of safetensors (`checkpoint_blocks`): f16 scale, zero point, 4 bits as Q4_0 has them;
    # f32 scale, e4m3fn.
    "UINT4": Format(32, 19, _uint4),
    "FP8": Format(32, 36, _fp8),
} | {
    name: Format(SUPER_BLOCK, each.block_bytes, _values_of(each))
    for name, each in SUPER_BLOCK_FORMATS.items()
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


def check_shapes(
    shapes: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], file: str
) -> None:
    """Raise WeightsError unless a file's tensors, by their shapes, are the expected ones."""
    for name, shape in expected.items():
        if name not in shapes:
            raise WeightsError(f"{file}: tensor {name!r} is missing")
        check_shape(name, shapes[name], shape, file)
    for name in shapes:
        if name not in expected:
            raise misplaced(name, file)


def check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...], file: str) -> None:
    """Raise WeightsError unless a tensor of a file has the shape that it should."""
    if shape != expected:
        raise WeightsError(f"{file}: tensor {name!r} has shape {shape}, the model needs {expected}")


def misplaced(name: str, file: str) -> WeightsError:
    """Return the error that a model has no place for a file's tensor."""
    return WeightsError(f"{file}: tensor {name!r} has no place in a model that is supported")
