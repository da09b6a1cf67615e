"""GGUF files (versions 2 and 3, little-endian): metadata and tensors out of a mapped file.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A file is not trusted: every count,
length and offset is checked against the file and against a bound before it is used. Arrays of
strings (a vocabulary) are walked over, not kept; the tokenizer is the edge's business.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod

import numpy as np

from skerry_core.weights.tensors import (
    FORMATS,
    Bytes,
    FileTensor,
    TruncatedFile,
    WeightsError,
    row_bytes,
)

Value = int | float | bool | str | tuple[int | float | bool, ...]

MAGIC = b"GGUF"
# Bounds of a header, the same in `skerry_regions.models.foreign.gguf_header`.
MAX_TENSORS = 1 << 16
MAX_PAIRS = 4096  # of metadata; real files have below a hundred
MAX_KEY = 65_535  # bytes, as in the specification
MAX_STRING = 1 << 20  # bytes; chat templates are the longest seen, below 64 KiB
MAX_ARRAY = 1 << 22  # elements; the largest vocabularies have 262,144
_MAX_NAME = 256  # bytes of a tensor's; ggml itself allows 64
_MAX_KEPT_ARRAY = 4096  # elements; a longer array of numbers is skipped
_MAX_DIMS = 4

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}

# https://github.com/ggml-org/ggml/blob/master/include/ggml.h, enum ggml_type
_TYPE_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0",
    35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
GGUF_FORMATS = tuple(name for name in FORMATS if name in _TYPE_NAMES.values())
"""Those that tensors of a GGUF file may have."""


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    name: str
    dims: tuple[int, ...]  # fastest first, as in the file
    type_id: int
    offset: int  # bytes from the start of tensor data

    def check_format(self, where: str) -> str:
        """Return the tensor's format. Raises WeightsError for one not in `GGUF_FORMATS`."""
        format_ = _TYPE_NAMES.get(self.type_id, f"number {self.type_id}")
        if format_ not in GGUF_FORMATS:
            known = ", ".join(GGUF_FORMATS)
            raise WeightsError(
                f"{where} has format {format_}, which is not supported, only {known}"
            )
        return format_

    def tensor(self, data: Bytes, start: int, where: str) -> FileTensor:
        """Return the tensor out of a mapped file. Raises WeightsError, beginning with `where`."""
        format_ = self.check_format(where)
        if not self.dims or min(self.dims) < 1:
            raise WeightsError(f"{where} has dimensions {self.dims}")
        try:
            size = prod(self.dims[1:]) * row_bytes(format_, self.dims[0])
        except ValueError as error:
            raise WeightsError(f"{where}: {error}") from None
        begin, end = start + self.offset, start + self.offset + size
        if end > len(data):
            raise WeightsError(f"{where} ends at byte {end}, the file has {len(data)}")
        return FileTensor(format_, self.dims[::-1], data[begin:end])


@dataclass(frozen=True, slots=True)
class GGUFContents:
    """A file's metadata, and where its tensors are said to lie."""

    metadata: dict[str, Value]
    _infos: list[_TensorInfo]
    _data: Bytes
    _alignment: int
    _start: int  # of tensor data
    _file: str

    def check_formats(self) -> None:
        """Raise WeightsError for a tensor not in `GGUF_FORMATS`, whether it is there yet."""
        for info in self._infos:
            info.check_format(f"{self._file}: tensor {info.name!r}")

    def tensors(self) -> dict[str, FileTensor]:
        """Return views of the mapped file.

        Raises WeightsError for a tensor that is not in it, or of a format not in `GGUF_FORMATS`.
        """
        tensors: dict[str, FileTensor] = {}
        for info in self._infos:
            where = f"{self._file}: tensor {info.name!r}"
            if info.name in tensors:
                raise WeightsError(f"{where} occurs twice")
            if info.offset % self._alignment:
                raise WeightsError(f"{where} at {info.offset} is not aligned to {self._alignment}")
            tensors[info.name] = info.tensor(self._data, self._start, where)
        return tensors


def read_gguf(data: Bytes, file: str) -> GGUFContents:
    """Parse a mapped file's header; `file` is its name in errors.

    Raises WeightsError on anything that is not a sound GGUF file.
    """
    cursor = _Cursor(data, file)
    if cursor.take(4, "magic") != MAGIC:
        raise WeightsError(f"{file}: not a GGUF file")
    version = cursor.scalar("I", "version")
    if version not in (2, 3):
        raise WeightsError(f"{file}: GGUF version {version} is not supported, only 2 and 3 are")
    num_tensors = cursor.count("Q", MAX_TENSORS, "number of tensors")
    num_pairs = cursor.count("Q", MAX_PAIRS, "number of metadata entries")

    metadata: dict[str, Value] = {}
    for _ in range(num_pairs):
        key = cursor.string(MAX_KEY, "metadata key")
        if key in metadata:
            raise WeightsError(f"{file}: metadata {key!r} occurs twice")
        value = cursor.value(f"metadata {key!r}")
        if value is not None:
            metadata[key] = value

    infos = [_tensor_info(cursor) for _ in range(num_tensors)]
    alignment = _alignment(metadata, file)
    start = -(-cursor.offset // alignment) * alignment
    return GGUFContents(metadata, infos, data, alignment, start, file)


class _Cursor:
    """Reads forward through the file, never past its end."""

    def __init__(self, data: Bytes, file: str) -> None:
        self._view = data.data
        self._file = file
        self.offset = 0

    def _advance(self, size: int, what: str) -> int:
        start = self.offset
        if size > len(self._view) - start:
            raise TruncatedFile(
                f"{self._file}: truncated: {what} needs {size} bytes at {start}, "
                f"the file has {len(self._view)}"
            )
        self.offset = start + size
        return start

    def take(self, size: int, what: str) -> bytes:
        start = self._advance(size, what)
        return bytes(self._view[start : start + size])

    def scalar(self, code: str, what: str) -> int | float | bool:
        layout = "<" + code
        start = self._advance(struct.calcsize(layout), what)
        value: int | float | bool = struct.unpack_from(layout, self._view, start)[0]
        return value

    def count(self, code: str, limit: int, what: str) -> int:
        value = int(self.scalar(code, what))
        if value > limit:
            raise WeightsError(f"{self._file}: {what} is {value}, more than {limit}")
        return value

    def string(self, limit: int, what: str) -> str:
        raw = self.take(self.count("Q", limit, f"length of {what}"), what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise WeightsError(f"{self._file}: {what} is not UTF-8: {error}") from None

    def value(self, what: str) -> Value | None:
        """Return the next typed value; None for an array that is not kept."""
        kind = int(self.scalar("I", what))
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind], what)
        if kind == _STRING:
            return self.string(MAX_STRING, what)
        if kind == _ARRAY:
            return self._array(what)
        raise WeightsError(f"{self._file}: {what} has unknown type {kind}")

    def _array(self, what: str) -> Value | None:
        kind = int(self.scalar("I", what))
        if kind not in (*_SCALARS, _STRING):
            raise WeightsError(f"{self._file}: {what} is an array of unknown type {kind}")
        length = self.count("Q", MAX_ARRAY, f"length of {what}")
        if kind == _STRING:
            self._skip_strings(length, what)
            return None
        item = np.dtype("<" + _SCALARS[kind])
        start = self._advance(length * item.itemsize, what)
        if length > _MAX_KEPT_ARRAY:
            return None
        return tuple(np.frombuffer(self._view, item, length, start).tolist())

    def _skip_strings(self, length: int, what: str) -> None:
        """Walk over strings. Written out: a vocabulary has a hundred thousand, at every start."""
        view, offset, end = self._view, self.offset, len(self._view)
        read_length = struct.Struct("<Q").unpack_from
        for _ in range(length):
            if offset + 8 > end:
                break
            (size,) = read_length(view, offset)
            if size > MAX_STRING:
                raise WeightsError(
                    f"{self._file}: length of {what}'s string is {size}, more than {MAX_STRING}"
                )
            offset += 8 + size
        else:
            if offset <= end:
                self.offset = offset
                return
        raise WeightsError(f"{self._file}: truncated: {what} runs past the end of the file")


def _tensor_info(cursor: _Cursor) -> _TensorInfo:
    name = cursor.string(_MAX_NAME, "tensor name")
    what = f"tensor {name!r}"
    num_dims = cursor.count("I", _MAX_DIMS, f"number of dimensions of {what}")
    dims = tuple(int(cursor.scalar("Q", what)) for _ in range(num_dims))
    return _TensorInfo(name, dims, int(cursor.scalar("I", what)), int(cursor.scalar("Q", what)))


def _alignment(metadata: dict[str, Value], file: str) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment not in (8 << i for i in range(14)):
        raise WeightsError(f"{file}: general.alignment {alignment!r} is not a power of two >= 8")
    return alignment
