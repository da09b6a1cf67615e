"""Memory that is in place before a step or a hand-over writes to it.

A system gives a page on its first touch, which costs time: about 0.1 ms for each MiB,
several times that in a virtual machine. A block of KV is a MiB or more, and the first blocks of a
long prompt would all pay.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from typing import Any

from numpy.typing import NDArray

AHEAD_BYTES = 32 << 20  # in place beyond what is in use: a small node never holds its whole pool
_MADV_POPULATE_WRITE = 23  # Linux 5.14: fault pages in, writable, and change nothing in them
_CHUNK_BYTES = 256 << 10  # per call, while which the process's memory map is locked
_LOWEST_PRIORITY = 19
_libc = ctypes.CDLL(None)


class PageAhead:
    """Brings pages of an array in, on a thread of the lowest priority, ahead of where it is used.

    Where the system cannot, pages come when they are touched, as ever. The array must be kept
    until `close`.
    """

    def __init__(self, memory: NDArray[Any], ahead: int = AHEAD_BYTES) -> None:
        start: int = memory.__array_interface__["data"][0]
        self._first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE  # whole pages only
        self._last = (start + memory.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        self._ahead = ahead
        self._wanted = self._done = self._first
        self._changed = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="skerry-pages", daemon=True)

    def start(self) -> None:
        self.used(0)
        self._thread.start()

    def used(self, end: int) -> None:
        """Note that the first `end` bytes are, or will be, in use. From the array's own thread."""
        whole = -(-(end + self._ahead) // mmap.PAGESIZE) * mmap.PAGESIZE
        wanted = min(self._first + whole, self._last)
        if wanted > self._wanted:
            self._wanted = wanted
            self._changed.set()

    @property
    def num_bytes(self) -> int:
        """Return how many were brought in."""
        return self._done - self._first

    def close(self) -> None:
        """Stop, and wait for the thread. Idempotent."""
        self._is_over = True
        self._changed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        _yield_to_others()
        while self._done < self._last and not self._is_over:
            if self._done >= self._wanted:
                self._changed.wait()
                self._changed.clear()
                continue
            size = min(_CHUNK_BYTES, self._wanted - self._done)
            if not _populate(self._done, size):
                return
            self._done += size


def _yield_to_others() -> None:
    """Let a thread, the caller's, run only when no other would. Linux has a priority of each."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)


def _populate(start: int, size: int) -> bool:
    """Bring pages in; return whether the system did."""
    if sys.platform != "linux":
        return False
    advice = ctypes.c_int(_MADV_POPULATE_WRITE)
    failed: int = _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), advice)
    return not failed
