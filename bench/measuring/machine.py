"""What this machine is and what it can do at most: every table of figures starts with it."""

from __future__ import annotations

import os
import platform
import threading
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np

from bench.measuring import peaks

GIGA = 1e9


def describe() -> dict[str, Any]:
    """Processor, cores, memory and versions, as far as Linux reports them."""
    cpuinfo = _read("/proc/cpuinfo")
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in cpuinfo.splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    flags = next(
        (
            line.split(":", 1)[1].split()
            for line in cpuinfo.splitlines()
            if line.startswith("flags")
        ),
        [],
    )
    memory_kib = next(
        (
            int(line.split()[1])
            for line in _read("/proc/meminfo").splitlines()
            if line.startswith("MemTotal")
        ),
        0,
    )
    wanted = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "simd": [flag for flag in wanted if flag in flags],
        "memory_gib": round(memory_kib / 2**20, 1),
        "os": platform.platform(),
        "python": platform.python_version(),
        "numba": numba.__version__,
    }


@numba.njit(nogil=True, fastmath=True, cache=False)
def _sum(values: Any) -> float:
    total: Any = np.float32(0)
    for i in range(values.size):
        total += values[i]
    return total


@numba.njit(nogil=True, cache=False)
def _mix(words: Any) -> int:
    total = 0
    for i in range(words.size):
        total ^= words[i]
    return total


def limits(threads: int = 2) -> dict[str, float]:
    """Ceilings measured now: read bandwidth of memory and of a cache-sized set, and products.

    GB/s are 1e9 bytes per second, GFLOPS 1e9 fp32 operations per second, GMAC/s 1e9 products and
    sums per second; the best of five or ten each.
    """
    return {
        "dram read, 1 thread, GB/s": _read_bandwidth(512 << 20, 1),
        f"dram read, {threads} threads, GB/s": _read_bandwidth(512 << 20, threads),
        f"96 MiB set read, {threads} threads, GB/s": _read_bandwidth(96 << 20, threads),
        "fp32 matmul 1024 (BLAS), GFLOPS": _matmul_rate(1024),
        f"int8 products, {threads} threads, GMAC/s": peaks.int8_peak(threads),
        f"fp32 products, {threads} threads, GMAC/s": peaks.float_peak(threads),
    }


def sustained_read(threads: int) -> float:
    """GB/s of reading a set of 96 MiB over and over, for about a tenth of a second."""
    return _read_bandwidth(96 << 20, threads, tries=1, passes=30)


def _read_bandwidth(size: int, threads: int, tries: int = 5, passes: int = 1) -> float:
    """GB/s of summing `size` bytes, split over `threads`, so many times at each try."""
    parts = np.array_split(np.ones(size // 4, np.float32), threads)
    _sum(parts[0][:16])

    def read(part: Any) -> None:
        for _ in range(passes):
            _sum(part)

    best = 0.0
    for _ in range(tries):
        workers = [threading.Thread(target=read, args=(part,)) for part in parts]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, passes * size / (time.perf_counter() - start) / GIGA)
    return round(best, 1)


def read_rate(data: Any, threads: int) -> float:
    """GB/s of reading an array of bytes once, split over `threads`; one thread's in its processor
    time."""
    parts = np.array_split(data[: data.size // 8 * 8].view(np.int64), threads)
    _mix(parts[0][:16])
    if threads == 1:
        begun = time.thread_time()
        _mix(parts[0])
        return round(data.nbytes / (time.thread_time() - begun) / GIGA, 2)
    workers = [threading.Thread(target=_mix, args=(part,)) for part in parts]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return round(data.nbytes / (time.perf_counter() - start) / GIGA, 2)


def _matmul_rate(n: int) -> float:
    """GFLOPS of NumPy's fp32 product of two n by n matrices."""
    a = np.ones((n, n), np.float32)
    np.matmul(a, a)
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        np.matmul(a, a)
        best = max(best, 2 * n**3 / (time.perf_counter() - start) / GIGA)
    return round(best, 1)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
