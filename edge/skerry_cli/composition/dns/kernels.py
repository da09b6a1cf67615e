"""The fast path of `skerry dns`, compiled once and kept with the platform's other kernels."""

from __future__ import annotations

from functools import partial

from skerry_core.runners.kernel_cache import KernelSet, load_kernels
from skerry_dns.fast.kernels import CONSTANTS, SOURCES, kernels

DNS_KERNELS = KernelSet(
    name="dns",
    reference=f"{__name__}:DNS_KERNELS",
    sources=SOURCES,
    constants=CONSTANTS,
    kernels=kernels,
)

load_dns_kernels = partial(load_kernels, DNS_KERNELS, "any")
"""Compiles or loads them, into or from a folder. Raises `CompilationError`."""
