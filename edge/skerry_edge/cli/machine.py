"""What this machine lets us use."""

from __future__ import annotations

import math
import os
from pathlib import Path

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")  # Linux control groups, version 2
MOST_THREADS = 16  # per model, unless asked for more: beyond, small models only wait for memory


def default_threads() -> int:
    """Cores for one model: those this process may run on, within its container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota = cores_of(CPU_MAX.read_text())
    except (OSError, ValueError):
        quota = None  # not Linux, or no such group
    return min(cores, quota or cores, MOST_THREADS)


def cores_of(cpu_max: str) -> int | None:
    """Whole cores that `cpu.max` ("<quota or max> <period>", microseconds) grants, at least one.

    None when there is no limit. ValueError for anything else.
    """
    quota, period = cpu_max.split()
    return None if quota == "max" else max(1, math.floor(int(quota) / int(period)))
