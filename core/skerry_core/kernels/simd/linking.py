"""Calls between kernels that are compiled apart.

numba copies whatever a kernel calls into it and optimises the whole again, at every level of
nesting: a large kernel called in five places five levels deep costs a minute. So the large ones are
compiled once, and called through their addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from skerry_core.kernels.simd.numba_math import intrinsic

TARGET = None  # stands for a target's type in argument types


def call_by_address(*argument_types: Any) -> Callable[..., None]:
    """Make an intrinsic `call(address, arguments)` for kernels that take these types.

    The arguments come as one tuple and are converted as in any call. A failure inside the callee
    goes unnoticed, so kernels do not raise.
    """

    @intrinsic
    def call(typing_context: Any, address: Any, arguments: Any) -> Any:
        wanted = [t or given for t, given in zip(argument_types, arguments, strict=True)]

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            convention = context.call_conv
            kind = convention.get_function_type(types.none, wanted)
            callee = builder.inttoptr(values[0], ir.PointerType(kind))
            unpacked = [builder.extract_value(values[1], i) for i in range(len(wanted))]
            convention.call_function(builder, callee, types.none, wanted, unpacked)
            return context.get_dummy_value()

        return types.void(types.int64, types.Tuple(wanted)), codegen

    compiled: Callable[..., None] = call
    return compiled


def compiled_address(kernel: Any, argument_types: tuple[Any, ...]) -> int:
    """Return the address of a kernel for these argument types; compiles it, or loads it from the
    cache.

    Raises TypeError when the kernel gives something back.
    """
    kernel.compile(argument_types)
    result = kernel.overloads[argument_types]
    if result.signature.return_type != types.none:
        raise TypeError(f"{kernel.__name__} gives {result.signature.return_type}, not nothing")
    address: int = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
    return address
