"""The fast path of `skerry dns`, compiled once and kept with the platform's other kernels."""

from __future__ import annotations

from pathlib import Path

from skerry_core.runner import Progress
from skerry_core.runners.kernel_cache import KernelSet, load_kernels
from skerry_dns.fast.kernels import CONSTANTS, SOURCES, kernels

DNS_KERNELS = KernelSet(
    name="dns",
    reference=f"{__name__}:DNS_KERNELS",
    sources=SOURCES,
    constants=CONSTANTS,
    kernels=kernels,
)


def load_dns_kernels(cache_dir: Path, progress: Progress) -> None:
    """Compile or load the fast path. Raises `CompilationError`."""
    load_kernels(DNS_KERNELS, "any", cache_dir, progress)
