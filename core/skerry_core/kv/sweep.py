"""Files of KV that no process holds any more: of nodes that are gone, whatever they were called."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from skerry_core.kv.file_tier import MAGIC

IDLE_SECONDS = 3600.0  # since its last write; a node that restarts finds its file


def sweep(folder: Path, now: float) -> list[Path]:
    """Remove the files that no process has locked, last written long before `now`; return them.

    `now` is in Unix seconds. A file that cannot be looked at stays, and so does one that is no
    tier's.
    """
    removed: list[Path] = []
    for path in sorted(folder.glob("*")):
        with contextlib.suppress(OSError):
            if path.is_file() and now - path.stat().st_mtime > IDLE_SECONDS and _is_unused(path):
                path.unlink()
                removed.append(path)
    return removed


def _is_unused(path: Path) -> bool:
    """Return whether it is a tier's file, or the beginning of one, that no process has locked."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.pread(file, len(MAGIC), 0).strip(b"\0") not in (b"", MAGIC):
            return False
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True
