"""Addresses, from Python and inside compiled code, and atomics: what numba has no word for."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.np.numpy_support import carray

from skerry_core.kernels.simd.aliases import Address, Array
from skerry_core.kernels.simd.emitter import I64
from skerry_core.kernels.simd.numba_math import building_block, intrinsic


def address(array: Array) -> Address:
    """Return where an array's data begins; from Python."""
    start: int = array.__array_interface__["data"][0]
    return start


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return zeros that begin a cache line; their pages come from the system when touched."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -address(raw) % 64
    return raw[start : start + size].view(dtype).reshape(shape)


@intrinsic
def address_of(typing_context: Any, array: Any) -> Any:
    """Return the address of an array's first element. The caller keeps the array alive."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(struct.data, I64)

    return types.int64(array), codegen


@intrinsic
def _pointer_to(typing_context: Any, address: Any, dtype: Any) -> Any:
    pointer = types.CPointer(dtype.dtype)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(types.int64, dtype), codegen


@building_block
def array_at(address: Address, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return the array of this shape (a tuple) that lies at an address; the memory stays the
    caller's."""
    return carray(_pointer_to(address, dtype), shape)


@intrinsic
def atomic_add(typing_context: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at an address; gives what was there before."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType())
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_exchange(typing_context: Any, address: Any, value: Any) -> Any:
    """Replace the int64 at an address, after everything written before; gives what was there."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType())
        return builder.atomic_rmw("xchg", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_load(typing_context: Any, address: Any) -> Any:
    """Load the int64 at an address; what was written before it was stored is visible after."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType())
        return builder.load_atomic(pointer, "seq_cst", 8, typ=I64)

    return types.int64(types.int64), codegen
