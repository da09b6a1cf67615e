"""Disks that are full, or lose what was not synced: small filesystems of their own."""

from __future__ import annotations

import contextlib
import fcntl
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


# `EXT4_IOC_SHUTDOWN` of Linux's `fs/ext4/ext4.h`, and its flag to write nothing any more.
SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, (2).to_bytes(4, "little")


class CuttableDisk:
    """An ext4 filesystem in a file, whose power may be cut: what no `fsync` has written is lost."""

    def __init__(self, folder: Path, size: int) -> None:
        """Mount it on a new folder; skip the test where that is forbidden."""
        self.folder = folder
        self._image = folder.with_name(f"{folder.name}.ext4")
        folder.mkdir()
        with self._image.open("wb") as file:
            file.truncate(size)
        try:
            self._run("mkfs.ext4", "-q", "-F", str(self._image))
            self._mount()
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no filesystem can be made here: {error}")

    def cut(self) -> None:
        """Cut its power: nothing is written from now on. Whoever has files there has to be killed
        before it is `back`."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(descriptor)

    def back(self) -> None:
        """Mount it again, as a machine does that starts: its journal is replayed."""
        self.close()
        self._mount()

    def close(self) -> None:
        self._run("umount", str(self.folder))

    def _mount(self) -> None:
        self._run("mount", "-o", "loop", str(self._image), str(self.folder))

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True)
