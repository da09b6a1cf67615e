"""BF12 in safetensors files: a matrix is in three to five tensors, named after it.

Their model's config.json says so in its `quantization_config`, so that a program that does not know
BF12 refuses the files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skerry_core.weights.bf12 import BF12_GROUP, BF12Matrix, check_escapes, encode
from skerry_core.weights.tensors import Bytes, FileTensor, MadeMatrix, WeightsError

METHOD: Final = "bf12"
VERSION: Final = 1
QUANTIZATION: Final = {"quant_method": METHOD, "version": VERSION}
"""What config.json says of such a model."""

_SIGNS, _CODES, _FIRSTS, _ESCAPES, _EXPONENTS = _PARTS = (
    *("bf12_signs", "bf12_codes", "bf12_firsts", "bf12_escapes", "bf12_exponents"),
)
_WORTH = 0.95  # of its bytes: a matrix that does not become smaller than that stays as it is
_ALIGNMENT = 64  # bytes, of where tensors begin
_ENTRY = 208  # bytes of a header, for a tensor: its part's name, format, shape and offsets
_FORMATS = {np.dtype(np.uint8): "U8", np.dtype(np.int32): "I32"}


def join_bf12(tensors: Mapping[str, FileTensor], file: str) -> dict[str, FileTensor]:
    """Return a file's tensors, of those that make one matrix the matrix in BF16, which is decoded
    when it is read. Raises WeightsError for parts that do not fit."""
    joined = dict[str, FileTensor]()
    for name, tensor in tensors.items():
        whole, _, part = name.rpartition(".")
        if part == _SIGNS:
            joined[whole] = _matrix(tensors, whole, file)
        elif part not in _PARTS:
            joined[name] = tensor
        elif f"{whole}.{_SIGNS}" not in tensors:
            raise WeightsError(f"{file}: tensor {name!r} has no {whole}.{_SIGNS}")
    return joined


def _matrix(tensors: Mapping[str, FileTensor], whole: str, file: str) -> FileTensor:
    shape = tensors[f"{whole}.{_SIGNS}"].shape
    if len(shape) != 2 or shape[1] % BF12_GROUP:
        raise WeightsError(f"{file}: tensor {f'{whole}.{_SIGNS}'!r} has shape {shape}")

    def part(name: str, format_: str, shape: tuple[int, ...]) -> FileTensor:
        tensor = tensors.get(f"{whole}.{name}")
        if tensor is None:
            raise WeightsError(f"{file}: tensor {f'{whole}.{name}'!r} is missing")
        if (tensor.format, tensor.shape) != (format_, shape):
            raise WeightsError(
                f"{file}: tensor {f'{whole}.{name}'!r} is {tensor.format} of shape {tensor.shape}, "
                f"its matrix needs {format_} of {shape}"
            )
        return tensor

    in_row = shape[1] // BF12_GROUP
    signs, codes = part(_SIGNS, "U8", shape), part(_CODES, "U8", (shape[0], shape[1] // 2))
    firsts = part(_FIRSTS, "U8", (shape[0],))
    escapes = FileTensor("I32", (0,), np.empty(0, np.uint8))
    exponents = FileTensor("U8", (0, BF12_GROUP), np.empty((0, BF12_GROUP), np.uint8))
    if f"{whole}.{_ESCAPES}" in tensors:
        number = prod(tensors[f"{whole}.{_ESCAPES}"].shape)
        escapes = part(_ESCAPES, "I32", (number,))
        exponents = part(_EXPONENTS, "U8", (number, BF12_GROUP))

    def decoded(rows: range, columns: range) -> Bytes:
        first, end = columns.start // BF12_GROUP, -(-columns.stop // BF12_GROUP)
        wide = range(first * BF12_GROUP, end * BF12_GROUP)
        halves = range(wide.start // 2, wide.stop // 2)
        own_signs = signs.cut(-2, rows).cut(-1, wide)
        own_codes = codes.cut(-2, rows).cut(-1, halves)
        groups = np.frombuffer(escapes.data, "<i4")
        try:
            check_escapes(groups, shape)
            some = range(*np.searchsorted(groups, [r * in_row for r in (rows.start, rows.stop)]))
            row, group = np.divmod(groups[some.start : some.stop], in_row)
            is_own = (group >= first) & (group < end)
            local = (row - rows.start) * (end - first) + group - first
            by_group = exponents.cut(-2, some).data.reshape(-1, BF12_GROUP)
            matrix = BF12Matrix(
                own_signs.by_row, own_codes.by_row, firsts.cut(-1, rows).data,
                local[is_own].astype(np.int32), by_group[is_own],
            )  # fmt: skip
            bits = matrix.decoded()
        except ValueError as error:
            raise WeightsError(f"{file}: tensor {whole!r}: {error}") from None
        kept = bits[:, columns.start - wide.start :][:, : len(columns)]
        return np.ascontiguousarray(kept).view(np.uint8)

    return FileTensor("BF16", shape, MadeMatrix(decoded, range(shape[0]), range(shape[1])))


def write_bf12(path: Path, tensors: Mapping[str, FileTensor]) -> Generator[int]:
    """Write a safetensors file, and yield the bytes that each tensor had before. Raises OSError.

    Only one tensor is held at a time: the header, whose length nobody knows before, gets room.
    """
    room = 2 + sum(len(_PARTS) * (len(json.dumps(name)) + _ENTRY) for name in tensors)
    room += -(8 + room) % _ALIGNMENT
    header = dict[str, Any]()
    with path.open("wb") as file:
        file.seek(8 + room)
        for name, tensor in tensors.items():
            for part, format_, array in _written(name, tensor):
                begin = file.tell() - 8 - room
                file.write(np.ascontiguousarray(array).data)
                offsets = [begin, begin + array.nbytes]
                shape = tensor.shape if part == name else array.shape
                header[part] = {"dtype": format_, "shape": shape, "data_offsets": offsets}
            yield prod(tensor.data.shape)
        file.seek(0)
        file.write(room.to_bytes(8, "little") + json.dumps(header).encode().ljust(room))
        file.flush()
        os.fsync(file.fileno())


def _written(name: str, tensor: FileTensor) -> list[tuple[str, str, NDArray[Any]]]:
    """Return names, formats and arrays of the tensors that a file has of one."""
    data = tensor.data
    if tensor.format == "BF16" and len(tensor.shape) == 2 and tensor.shape[1] % BF12_GROUP == 0:
        matrix = encode(data.view("<u2").reshape(tensor.shape))
        if matrix.num_bytes < _WORTH * data.nbytes:
            arrays: list[NDArray[Any]] = [
                matrix.signs,
                matrix.codes,
                matrix.firsts,
                matrix.escapes,
                matrix.exponents,
            ]
            return [
                (f"{name}.{part}", _FORMATS[array.dtype], array)
                for part, array in zip(_PARTS, arrays, strict=True)
                if array.size
            ]
    return [(name, tensor.format, data)]
