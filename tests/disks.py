"""Disks that are full: small filesystems of their own, in memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Generator[Path]:
    """Mount a filesystem of `size` bytes on a new folder; skip the test where that is forbidden."""
    folder.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "skerry-test", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount(8)")
    if done.returncode:
        pytest.skip(f"no filesystem can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the room there is; return the file that has it."""
    path = folder / "filled"
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        disk = os.fstatvfs(file.fileno())
        os.posix_fallocate(file.fileno(), 0, max(disk.f_bavail * disk.f_frsize, 1))
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(os.sysconf("SC_PAGE_SIZE")))  # what was freed meanwhile
    return path
