"""Metadata of a GGUF file: its key-value header, without its tensors.

A file is a stranger's: every count and length is checked against a limit and the file's size before
it is used. Format: github.com/ggml-org/ggml, docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

Scalar = int | float | bool | str
Value = Scalar | list[int] | list[float] | list[bool] | list[str]

MAGIC: Final = b"GGUF"
# Bounds of a header, the same in `skerry_core.weights.gguf`, which the edge must not import.
MAX_TENSORS: Final = 1 << 16
MAX_PAIRS: Final = 4096  # of metadata; real files have below a hundred
MAX_KEY: Final = 65_535  # bytes, as in the specification
MAX_STRING: Final = 1 << 20  # bytes; chat templates are the longest seen, below 64 KiB
MAX_ARRAY: Final = 1 << 22  # elements; the largest vocabularies have 262,144

_STRING: Final = 8
_ARRAY: Final = 9
_BOOL: Final = 7
_FORMATS: Final = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    10: "Q",
    11: "q",
    12: "d",
}


class GGUFError(ValueError):
    """Not a GGUF file, or one that is cut short or inconsistent; the message names the file."""


def read_metadata(path: Path) -> dict[str, Value]:
    """Return all key-value pairs of the header. Raises `GGUFError` and `OSError`."""
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise GGUFError(f"{path.name}: too short to be a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Reader(data).read()
            except GGUFError as error:
                raise GGUFError(f"{path.name}: {error}") from None


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._offset = 0

    def read(self) -> dict[str, Value]:
        if self._take(4) != MAGIC:
            raise GGUFError("not a GGUF file")
        version = self._number("I")
        if version not in (2, 3):
            raise GGUFError(f"GGUF version {version} is not supported (2 and 3 are)")
        self._count(MAX_TENSORS, "tensors")
        num_pairs = self._count(MAX_PAIRS, "metadata entries")
        metadata: dict[str, Value] = {}
        for _ in range(num_pairs):
            key = self._string(MAX_KEY)
            if key in metadata:
                raise GGUFError(f"metadata {key!r} occurs twice")
            metadata[key] = self._value(key)
        return metadata

    def _value(self, key: str) -> Value:
        kind = self._number("I")
        if kind != _ARRAY:
            return self._scalar(int(kind), key)
        element = int(self._number("I"))
        if element not in (*_FORMATS, _BOOL, _STRING):
            raise GGUFError(f"{key} is an array of unknown type {element}")
        length = self._count(MAX_ARRAY, f"elements of {key}")
        if element == _STRING:
            return [self._string(MAX_STRING) for _ in range(length)]
        if element == _BOOL:
            return [byte != 0 for byte in self._take(length)]
        code = f"<{length}{_FORMATS[element]}"
        return list(struct.unpack(code, self._take(struct.calcsize(code))))

    def _scalar(self, kind: int, key: str) -> Scalar:
        if kind == _STRING:
            return self._string(MAX_STRING)
        if kind == _BOOL:
            return self._take(1) != b"\0"
        if kind not in _FORMATS:
            raise GGUFError(f"{key} is of unknown type {kind}")
        return self._number(_FORMATS[kind])

    def _string(self, limit: int) -> str:
        data = self._take(self._count(limit, "bytes of a string"))
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise GGUFError(f"a string before byte {self._offset} is not UTF-8") from None

    def _count(self, limit: int, what: str) -> int:
        count = int(self._number("Q"))
        if count > limit:
            raise GGUFError(f"{count} {what}, more than {limit}")
        return count

    def _number(self, code: str) -> int | float:
        value: int | float = struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))[0]
        return value

    def _take(self, size: int) -> bytes:
        end = self._offset + size
        if end > len(self._data):
            raise GGUFError(f"cut short: the header goes on after byte {len(self._data)}")
        data = self._data[self._offset : end]
        self._offset = end
        return data
