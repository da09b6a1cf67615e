"""The router's compiled price and index, kept with the platform's other kernels."""

from __future__ import annotations

from functools import partial

from skerry_core.runners.kernel_cache import KernelSet, load_kernels
from skerry_regions.routing.fast.kernels import CONSTANTS, SOURCES, kernels

ROUTING_KERNELS = KernelSet(
    name="routing",
    reference=f"{__name__}:ROUTING_KERNELS",
    sources=SOURCES,
    constants=CONSTANTS,
    kernels=kernels,
)

load_routing_kernels = partial(load_kernels, ROUTING_KERNELS, "any")
"""Compiles or loads them, into or from a folder. Raises `CompilationError`."""
