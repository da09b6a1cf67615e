"""The router's compiled price and index, kept with the platform's other kernels."""

from __future__ import annotations

from pathlib import Path

from skerry_core.runner import Progress
from skerry_core.runners.kernel_cache import KernelSet, load_kernels
from skerry_regions.routing.fast.kernels import CONSTANTS, SOURCES, kernels

ROUTING_KERNELS = KernelSet(
    name="routing",
    reference=f"{__name__}:ROUTING_KERNELS",
    sources=SOURCES,
    constants=CONSTANTS,
    kernels=kernels,
)


def load_routing_kernels(cache_dir: Path, progress: Progress) -> None:
    """Compile or load them. Raises `CompilationError`."""
    load_kernels(ROUTING_KERNELS, "any", cache_dir, progress)
