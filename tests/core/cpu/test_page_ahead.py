"""Memory ahead of its use: in place as far as asked, and left as it was."""

from __future__ import annotations

import ctypes
import mmap
import time

import numpy as np
import pytest

from skerry_core.runners.page_ahead import PageAhead, _populate

PAGES = 64
AHEAD = 8 * mmap.PAGESIZE


def resident(memory: mmap.mmap) -> int:
    """Pages of it that are in memory."""
    told = (ctypes.c_ubyte * PAGES)()
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), PAGES * mmap.PAGESIZE, told) == 0
    return sum(page & 1 for page in told)


def wait_for(ahead: PageAhead, num_bytes: int) -> None:
    deadline = time.monotonic() + 60
    while ahead.num_bytes < num_bytes:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def memory() -> mmap.mmap:
    fresh = mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE)
    array = np.frombuffer(fresh, np.uint8)
    if not _populate(array.__array_interface__["data"][0], mmap.PAGESIZE):
        pytest.skip("this system cannot bring pages in")
    return fresh


def test_pages_come_as_far_ahead_as_asked(memory: mmap.mmap) -> None:
    array = np.frombuffer(memory, np.uint8)
    array[3] = 7
    ahead = PageAhead(array, AHEAD)
    ahead.start()
    wait_for(ahead, AHEAD)
    assert resident(memory) == 8
    ahead.used(10 * mmap.PAGESIZE)
    ahead.used(2 * mmap.PAGESIZE)  # nothing is given back
    wait_for(ahead, 18 * mmap.PAGESIZE)
    assert resident(memory) == 18
    ahead.close()
    assert array[3] == 7


def test_it_ends_with_the_array(memory: mmap.mmap) -> None:
    array = np.frombuffer(memory, np.uint8)[1:]  # whole pages only: the first is its neighbour's
    ahead = PageAhead(array, AHEAD)
    ahead.start()
    ahead.used(array.nbytes)
    wait_for(ahead, (PAGES - 1) * mmap.PAGESIZE)
    ahead.close()
    ahead.close()
    assert ahead.num_bytes == (PAGES - 1) * mmap.PAGESIZE


def test_it_may_be_closed_before_it_started(memory: mmap.mmap) -> None:
    PageAhead(np.frombuffer(memory, np.uint8)).close()
