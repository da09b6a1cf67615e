"""Sets of kernels that are quick to compile, or end their compiler, for tests of the cache."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from numba import types

from skerry_core.kernels.simd.numba_math import kernel
from skerry_core.runners.kernel_cache import KernelSet

Kernels = dict[str, tuple[Any, tuple[Any, ...]]]


@kernel
def double(x: int) -> int:
    return 2 * x


@kernel
def inner(x: int) -> int:
    return 2 * x


@kernel
def outer(x: int) -> int:
    return inner(x) + 1


def _kernels(variant: str) -> Kernels:
    return {"double": (double, (types.int64,))}


def _ends_its_process(variant: str) -> Kernels:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def _raises(variant: str) -> Kernels:
    raise ValueError(f"no kernels for {variant}")


def _set(kernels: Any, name: str) -> KernelSet:
    return KernelSet(
        name=name.lower(),
        reference=f"tests.core.cpu.small_kernels:{name}",
        sources=(sys.modules[__name__],),
        constants=(),
        kernels=kernels,
    )


DOUBLE = _set(_kernels, "DOUBLE")
KILLED = _set(_ends_its_process, "KILLED")
FAILING = _set(_raises, "FAILING")
