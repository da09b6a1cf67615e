"""How the functions of the fast path are compiled, and the words that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit, types

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
UInt64s: TypeAlias = npt.NDArray[np.uint64]
Floats: TypeAlias = npt.NDArray[np.float64]

wide: Callable[[Any], int] = cast(Any, np.int64)
"""A number of 64 bits: narrower ones out of arrays overflow, and unsigned ones become floats beside
signed ones."""

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Return a function that runs without the GIL and without Python objects; nothing may be
    allocated.

    It is inlined wherever it is called: a call would pass each of a table's hundred fields.
    """
    compiler = cast(Any, njit)(nogil=True, error_model="numpy", _nrt=False, forceinline=True)
    return cast(Function, compiler(function))


_memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.intp))


@compiled
def u16(data: Bytes, at: int) -> int:
    """Return the big-endian number of two bytes."""
    return wide(data[at]) << 8 | wide(data[at + 1])


@compiled
def put_u16(data: Bytes, at: int, value: int) -> None:
    """Write a big-endian number of two bytes."""
    data[at] = value >> 8 & 0xFF
    data[at + 1] = value & 0xFF


@compiled
def copy(target: Bytes, at: int, source: Bytes, start: int, count: int) -> int:
    """Copy bytes; where the next ones go."""
    _memcpy(target.ctypes.data + at, source.ctypes.data + start, count)
    return at + count


@compiled
def u64(data: Bytes, at: int, count: int) -> np.uint64:
    """Return `count` (up to 8) bytes as a little-endian number."""
    value = np.uint64(0)
    for i in range(count):
        value |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return value


@compiled
def top64(data: Bytes, at: int, count: int) -> np.uint64:
    """Return the first 64 bits of a big-endian number of which `count` bytes are there, the rest
    zero."""
    value = np.uint64(0)
    for i in range(min(count, 8)):
        value |= np.uint64(data[at + i]) << np.uint64(56 - 8 * i)
    return value
