"""How the functions of this room are compiled, and the words that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit

Bytes: TypeAlias = npt.NDArray[np.uint8]
UInt16s: TypeAlias = npt.NDArray[np.uint16]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
UInt64s: TypeAlias = npt.NDArray[np.uint64]
Floats: TypeAlias = npt.NDArray[np.float64]

wide: Callable[[Any], int] = cast(Any, np.int64)
"""A signed number of 64 bits: numba makes a float of a sum of signed and unsigned ones."""

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a function to run without the GIL. Division by zero gives infinity."""
    compiler = cast(Any, njit)(nogil=True, error_model="numpy", _nrt=False, forceinline=True)
    return cast(Function, compiler(function))


def called(function: Function) -> Function:
    """Compile a function alike that is too long to be part of whoever calls it."""
    compiler = cast(Any, njit)(nogil=True, error_model="numpy", _nrt=False)
    return cast(Function, compiler(function))


@compiled
def mixed(value: np.uint64) -> np.uint64:
    """Return 64 well-mixed bits of a number (SplitMix64's finaliser, Steele et al. 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled
def draw(state: UInt64s, below: int) -> int:
    """Return a random number below a bound, and advance the state (Marsaglia's xorshift)."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return wide((x >> np.uint64(11)) % np.uint64(below))
