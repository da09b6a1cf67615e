"""What this machine lets us use."""

from __future__ import annotations

import math
import os
import sys
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


def configure_threads(threads: int) -> None:
    """Say how many threads native libraries may start; they read it when they are imported.

    The engine's kernels get all of them, and nothing else may take any: a second pool on the same
    cores would cost the first one its pace.
    """
    os.environ["NUMBA_NUM_THREADS"] = str(threads)
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # OpenMP's threads (Torch's) wait asleep: spinning, they take cores from whoever has work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    sys.setswitchinterval(0.001)  # seconds: a token must not wait 5 ms for the interpreter
