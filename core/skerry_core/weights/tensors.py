"""Tensors as weight files hold them, and what their formats mean: `dequantize` in NumPy.

The quantised formats are GGML's: rows of blocks, each with its own scales (ggml-common.h).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
class MadeMatrix:
    """Rows and columns of a matrix that does not lie in the file as it is wanted."""

    make: Callable[[range, range], Bytes]
    """Makes u8[rows, bytes] of neighbouring rows, and of columns in whole blocks; of the file it
    reads what they need."""
    rows: range  # perhaps with gaps
    columns: range

    def __call__(self) -> Bytes:
        together = range(self.rows.start, self.rows[-1] + 1) if self.rows else self.rows
        return self.make(together, self.columns)[:: self.rows.step]


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
        return made.reshape(*self.shape[:-1], row_bytes(self.format, self.shape[-1]))

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

    def cut(self, axis: int, part: range) -> FileTensor:
        """Return some rows (axis -2) or neighbouring columns (-1), of each matrix of a stack, or
        elements of a vector (-1). No more is read of the file, unless the whole has to be made.

        Raises ValueError for columns that are not whole blocks.
        """
        shape, source = list(self.shape), self.source
        shape[axis] = len(part)
        first, end = part.start, part.stop
        if axis == -1:
            first, end = (row_bytes(self.format, column) for column in (first, end))
        own: Callable[[], Bytes] | tuple[FileTensor, ...]

        def of_rows() -> Bytes:
            return self.by_row[..., first : end : part.step, :]

        def of_columns() -> Bytes:
            return self.by_row[..., first:end]

        if isinstance(source, tuple):  # each of which has the last two axes
            own = tuple(each.cut(axis, part) for each in source)
        elif isinstance(source, MadeMatrix):
            which = slice(part.start, part.stop, part.step)
            is_rows = axis == -2
            own = replace(
                source,
                rows=source.rows[which] if is_rows else source.rows,
                columns=source.columns if is_rows else source.columns[which],
            )
        else:
            own = of_rows if axis == -2 else of_columns
        return FileTensor(self.format, tuple(shape), own)


class Format(NamedTuple):
    block_size: int  # elements
    block_bytes: int
    decode: Callable[[Bytes], NDArray[np.generic]]  # u8[n, block_bytes] -> [n, block_size]


RAW_FORMATS = {"F8_E4M3": 1, "U8": 1, "I32": 4, "I64": 8}
"""Formats of what weights are made of, and bytes of an element."""


def row_bytes(format_: str, columns: int) -> int:
    """Return bytes of one row. Raises ValueError unless whole blocks fill it."""
    if format_ in RAW_FORMATS:
        return RAW_FORMATS[format_] * columns
    block_size, block_bytes, _ = FORMATS[format_]
    if columns % block_size:
        raise ValueError(f"{columns} columns are not whole {format_} blocks of {block_size}")
    return columns // block_size * block_bytes


def dequantize(tensor: FileTensor) -> Float32:
    """Return the tensor's values as a new f32 array of its shape."""
    _, block_bytes, decode = FORMATS[tensor.format]
    blocks = tensor.data.reshape(-1, block_bytes)
    return decode(blocks).astype(np.float32).reshape(tensor.shape)


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
