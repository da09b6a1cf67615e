"""What a device did meanwhile, kernel by kernel, as torch's profiler saw it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, a copy or a fill of memory; times in microseconds."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Time in which nothing ran."""

    micros: float
    after: str
    before: str


def kernels_of(run: Callable[[], object], device: torch.device) -> list[Kernel]:
    """Return what ran on the device meanwhile, by its begin; on a CPU the outermost operators."""
    is_cuda = device.type == "cuda"
    activity = ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        run()
        if is_cuda:
            torch.cuda.synchronize(device)
    kind = "CUDA" if is_cuda else "CPU"
    told = [
        Kernel(event.name, event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type.name == kind
        and event.cpu_parent is None
        and not event.is_user_annotation
    ]
    return sorted(told, key=lambda kernel: kernel.begin)


def busy_micros(kernels: Sequence[Kernel]) -> float:
    """Return how long at least one of them ran: those of two streams may overlap."""
    busy, until = 0.0, float("-inf")
    for kernel in sorted(kernels, key=lambda kernel: kernel.begin):
        busy += max(kernel.end - max(kernel.begin, until), 0.0)
        until = max(until, kernel.end)
    return busy


def idle_share(kernels: Sequence[Kernel]) -> float:
    """Return the share of the time, from the first begin to the last end, in which none ran.

    Raises ValueError where there is none: a profiler that saw nothing is not a busy device.
    """
    if not kernels:
        raise ValueError("the profiler saw no kernel")
    whole = max(kernel.end for kernel in kernels) - min(kernel.begin for kernel in kernels)
    return 1 - busy_micros(kernels) / whole


def gaps(kernels: Sequence[Kernel]) -> list[Gap]:
    """Return all times in which none ran, in order."""
    found: list[Gap] = []
    if not kernels:
        return found
    last, *others = sorted(kernels, key=lambda kernel: kernel.begin)
    for kernel in others:
        if kernel.begin > last.end:
            found.append(Gap(kernel.begin - last.end, last.name, kernel.name))
        last = max(last, kernel, key=lambda one: one.end)
    return found
