"""Locks on files that a process holds from its start to its end, and who holds one."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


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
