"""The event loop of `skerry simulate`, kept with the platform's other kernels."""

from __future__ import annotations

from functools import partial

from skerry_core.runners.kernel_cache import KernelSet, load_kernels
from skerry_regions.twin.kernels import CONSTANTS, SOURCES, kernels

TWIN_KERNELS = KernelSet(
    name="twin",
    reference=f"{__name__}:TWIN_KERNELS",
    sources=SOURCES,
    constants=CONSTANTS,
    kernels=kernels,
)

load_twin_kernels = partial(load_kernels, TWIN_KERNELS, "any")
"""Compiles or loads them, into or from a folder. Raises `CompilationError`."""
