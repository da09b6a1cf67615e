"""The event loop of `skerry simulate`, kept with the platform's other kernels."""

from __future__ import annotations

from pathlib import Path

from skerry_core.runner import Progress
from skerry_core.runners.kernel_cache import KernelSet, load_kernels
from skerry_regions.twin.kernels import CONSTANTS, SOURCES, kernels

TWIN_KERNELS = KernelSet(
    name="twin",
    reference=f"{__name__}:TWIN_KERNELS",
    sources=SOURCES,
    constants=CONSTANTS,
    kernels=kernels,
)


def load_twin_kernels(cache_dir: Path, progress: Progress) -> None:
    """Compile or load them. Raises `CompilationError`."""
    load_kernels(TWIN_KERNELS, "any", cache_dir, progress)
