"""A file of one process, whose first bytes are mapped."""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path


class FileTierError(Exception):
    """The file cannot be used; the message names it and says why."""


def open_mapped(path: Path, size: int, mapped: int) -> tuple[int, mmap.mmap]:
    """Open, lock and size the file, readable by its owner only, and map its first bytes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FileTierError(f"{path}: cannot open the KV file: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file).st_size != size:
            _reserve(file, size, mapped)
        return file, mmap.mmap(file, mapped)
    except BlockingIOError as error:
        os.close(file)
        raise FileTierError(f"{path}: another process uses this KV file") from error
    except OSError as error:
        os.close(file)
        raise FileTierError(f"{path}: cannot reserve {size} bytes: {error.strerror}") from error


def _reserve(file: int, size: int, mapped: int) -> None:
    """Make a file of `size` bytes whose first `mapped` ones need no space later: writing to a
    mapped hole of a full disk is a SIGBUS. It has its size only when they are all there."""
    os.ftruncate(file, 0)
    try:
        written = 0
        while written < mapped:
            written += os.pwrite(file, bytes(mapped - written), written)  # may be cut short
        os.ftruncate(file, size)
    except OSError:
        os.ftruncate(file, 0)  # what was written of it would fill the disk for nothing
        raise
