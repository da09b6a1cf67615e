"""Locks on files that a process holds from its start to its end, and who holds one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import IO


def holder(path: Path) -> int | None:
    """Return the session leader that has this file open; None when there is none."""
    wanted = path.stat()
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        pid = int(process.name)
        try:
            if os.getsid(pid) == pid and any(
                os.path.samestat(os.stat(descriptor), wanted)
                for descriptor in (process / "fd").iterdir()
            ):
                return pid
        except OSError:  # gone, or not ours
            continue
    return None


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock of this file; a file that is not there has none."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def lock_in_time(file: IO[bytes], seconds: float, *, pause: float) -> None:
    """Take a file's lock, which cannot be waited for with a deadline: it is tried again after each
    pause. Raises BlockingIOError when somebody else holds it to the end."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(pause)


def locked(path: Path) -> int:
    """Return a descriptor of the file that holds its lock. Raises BlockingIOError when another
    does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
