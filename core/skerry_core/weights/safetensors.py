"""Safetensors files: a JSON header, then raw arrays (https://github.com/huggingface/safetensors).

The header is not trusted: its length is bounded and each tensor is checked against the file.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any, TypeGuard

from skerry_core.weights.files import read_json_object
from skerry_core.weights.tensors import RAW_FORMATS, Bytes, FileTensor, WeightsError, row_bytes

_MAX_HEADER = 16 << 20  # bytes; a 70B model's is about 100 KB
_MAX_TENSORS = 1 << 16
_MAX_DIMS = 4
_MAX_SIZE = 1 << 62  # elements along a dimension
_FLOATS = ("F32", "F16", "BF16")


def read_safetensors(
    data: Bytes, file: str, *, ignored: re.Pattern[str] | None = None, takes_raw: bool = False
) -> dict[str, FileTensor]:
    """Parse a mapped file; `file` is its name in errors. Tensors are views of `data`.

    Those whose whole name matches `ignored` are left out unread, whatever their format. Raises
    WeightsError on anything that is not a sound file of F32, F16 and BF16 tensors, or with
    `takes_raw` of `RAW_FORMATS` too.
    """
    if len(data) < 8:
        raise WeightsError(f"{file}: too short for a safetensors file")
    size = int.from_bytes(data[:8].tobytes(), "little")
    if size > min(_MAX_HEADER, len(data) - 8):
        raise WeightsError(
            f"{file}: a header of {size} bytes does not fit, or is over {_MAX_HEADER}"
        )
    header = read_json_object(data[8 : 8 + size].tobytes(), f"{file}: header")
    header.pop("__metadata__", None)
    if len(header) > _MAX_TENSORS:
        raise WeightsError(f"{file}: {len(header)} tensors, more than {_MAX_TENSORS}")
    body = data[8 + size :]
    return {
        name: _tensor(f"{file}: tensor {name!r}", entry, body, takes_raw=takes_raw)
        for name, entry in header.items()
        if ignored is None or not ignored.fullmatch(name)
    }


def _tensor(where: str, entry: Any, body: Bytes, *, takes_raw: bool) -> FileTensor:
    if not isinstance(entry, dict):
        raise WeightsError(f"{where} is not described by an object")
    format_, shape = entry.get("dtype"), entry.get("shape")
    is_raw = takes_raw and format_ in RAW_FORMATS
    if not isinstance(format_, str) or (format_ not in _FLOATS and not is_raw):
        raise WeightsError(
            f"{where} has format {format_!r}, which is not supported, only F32, F16 and BF16"
        )
    if takes_raw and shape == []:
        shape = [1]  # a number
    if not _are_sizes(shape) or not 0 < len(shape) <= _MAX_DIMS or min(shape) < 1:
        raise WeightsError(f"{where} has shape {shape!r}")
    offsets = entry.get("data_offsets")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise WeightsError(f"{where} has data_offsets {offsets!r}")
    begin, end = offsets
    size = prod(shape[:-1]) * row_bytes(format_, shape[-1])
    if end - begin != size or end > len(body):
        raise WeightsError(
            f"{where} of {size} bytes is said to lie at {begin} to {end} of {len(body)}"
        )
    return FileTensor(format_, tuple(shape), body[begin:end])


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item < _MAX_SIZE for item in value
    )
