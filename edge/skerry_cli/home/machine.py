"""What this machine lets us use."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from pathlib import Path

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")  # Linux control groups, version 2
MOST_THREADS = 16  # per model, unless given: beyond, small models only wait for memory

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt(3)
_KEPT_BYTES = 64 << 20
_LARGEST_KEPT = 16 << 20


def default_threads() -> int:
    """Return cores for one model."""
    return min(available_cores(), MOST_THREADS)


def available_cores() -> int:
    """Return the cores that this process may run on, within its container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota = cores_of(CPU_MAX.read_text())
    except (OSError, ValueError):
        quota = None  # not Linux, or no such group
    return min(cores, quota or cores)


def cores_of(cpu_max: str) -> int | None:
    """Return the whole cores that `cpu.max` ("<quota or max> <period>", microseconds) grants, at
    least one.

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


def keep_freed_memory() -> None:
    """Let the allocator keep up to 64 MiB of what was freed, and take large arrays from it.

    Blocks of KV on their way through a node are of a MiB or more, and each would otherwise be
    fetched from the system and given back, page by page. Where libc has no such option, so be it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def free_memory() -> int | None:
    """Return the bytes that programs may still take, of the machine and of the container that this
    runs in; None where Linux does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(each.split()[1]) * 1024 for each in lines if each.startswith("MemAvail"))
    except (OSError, StopIteration, ValueError):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        cache = int(stat["inactive_file"])  # goes when it has to
        return max(0, min(free, limit - used + cache))
    except (KeyError, OSError, ValueError):  # no limit, or no such thing
        return free


def available_gpus(devices: Path = Path("/dev")) -> tuple[int, ...]:
    """Return the numbers of NVIDIA's GPUs, as their driver shows them."""
    names = (each.name.removeprefix("nvidia") for each in devices.glob("nvidia[0-9]*"))
    return tuple(sorted(int(each) for each in names if each.isdecimal()))
