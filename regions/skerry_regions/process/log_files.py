"""Log files that stay within bounds: a full one is renamed to `.1`, the one before to `.2`, …

A process whose stderr is a file rotates it by itself, whoever opened the file; tracebacks and what
libraries print go to the new one, too. What is renamed is evidence, and never deleted at a start.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import sys
from pathlib import Path

MAX_LOG_BYTES = 10 << 20  # of one file
LOG_TAIL = 15  # lines shown when a start fails
NUM_KEPT = 4  # full ones, beside the one that is written


def rotate(path: Path, *, most: int = MAX_LOG_BYTES) -> None:
    """Make room for a new file where the present one is full. Raises OSError.

    Processes that share the file may do so at once.
    """
    with path.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if path.stat().st_size < most:
                return
        except FileNotFoundError:
            return
        for number in range(NUM_KEPT - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(_numbered(path, number), _numbered(path, number + 1))
        os.replace(path, _numbered(path, 1))


def open_log(path: Path) -> int:
    """Return a descriptor that appends to a log with room in it. Raises OSError."""
    with contextlib.suppress(OSError):  # a full disk: the old one goes on
        rotate(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def tail(path: Path, begin: int = 0) -> str:
    """Return the last lines that were appended to a log from `begin` on, indented; all is new where
    it was rotated."""
    content = path.read_bytes() if path.exists() else b""  # of a process that was never started
    new = content[begin:] if len(content) >= begin else content
    lines = new.decode("utf-8", errors="replace").splitlines()
    return "\n".join(f"  {line}" for line in lines[-LOG_TAIL:])


class RotatedErrors(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr; where that is a file, a full one is rotated first."""

    def __init__(self, *, most: int = MAX_LOG_BYTES) -> None:
        super().__init__(sys.stderr)
        self._most = most

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            self._make_room()
        super().emit(record)

    def _make_room(self) -> None:
        present = os.fstat(2)
        if not stat.S_ISREG(present.st_mode) or present.st_size < self._most:
            return
        path = Path(os.readlink("/proc/self/fd/2").removesuffix(" (deleted)"))
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == present.st_ino:  # else another process has rotated it
                rotate(path, most=self._most)
        if path.suffix.removeprefix(".").isdigit():  # renamed under us: go on with the new one
            path = path.with_suffix("")
        fresh = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            is_stdout = os.fstat(1).st_ino == present.st_ino
            os.dup2(fresh, 2)
            if is_stdout:
                os.dup2(fresh, 1)
        finally:
            os.close(fresh)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
