"""What the machine lets us use: its cores, and memory that was freed."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from skerry_cli.home.machine import MOST_THREADS, cores_of, default_threads


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [("max 100000\n", None), ("200000 100000\n", 2), ("150000 100000", 1), ("5000 100000", 1)],
)
def test_a_containers_quota(cpu_max: str, cores: int | None) -> None:
    assert cores_of(cpu_max) == cores


@pytest.mark.parametrize("cpu_max", ["", "max", "fast 100000", "1 2 3"])
def test_what_is_no_quota(cpu_max: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        cores_of(cpu_max)


def test_this_machine() -> None:
    assert 1 <= default_threads() <= MOST_THREADS


LARGE_ARRAY = """
import numpy as np
from skerry_cli.home.machine import keep_freed_memory
if {keeps}:
    keep_freed_memory()
start = np.ones(2 << 20, np.uint8).__array_interface__["data"][0]
heap = next(line for line in open("/proc/self/maps") if "[heap]" in line)
first, last = (int(end, 16) for end in heap.split()[0].split("-"))
print(first <= start < last)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an option of glibc")
@pytest.mark.parametrize("keeps", [False, True])
def test_large_arrays_come_from_memory_that_is_kept(keeps: bool) -> None:
    told = subprocess.check_output([sys.executable, "-c", LARGE_ARRAY.format(keeps=keeps)])
    assert told.decode().strip() == str(keeps)
