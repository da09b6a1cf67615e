"""Room on the disk of a home, kept back for the next start.

A platform whose disk is full serves on. One that starts there writes who runs, and what SQLite
needs beside each file: a file of the home has room for that, and is given up where there is none.
"""

from __future__ import annotations

import contextlib
import os

from skerry_cli.home.state import Home

START_BYTES = 2 << 20  # more than any start was seen to take


def keep_room(home: Home) -> None:
    """Keep back what the next start takes, where as much again is left; once is enough."""
    if home.reserve.exists() or _free(home) < 2 * START_BYTES:
        return
    try:
        with home.reserve.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, START_BYTES)
    except OSError:  # somebody else was faster, or the disk takes no such file
        give_up_room(home)


def give_up_room(home: Home) -> None:
    """Let a start have it."""
    with contextlib.suppress(OSError):
        home.reserve.unlink()


def has_room(home: Home) -> bool:
    """Return whether the disk has what a start takes, beside what is kept back."""
    return _free(home) >= START_BYTES


def room_wanted(home: Home) -> str:
    """Return what to do about a disk without room."""
    return (
        f"the disk of {home.root} has {_free(home) >> 10} KiB left, and a start takes up to "
        f"{START_BYTES >> 10}: make room there (models/, cache/ and logs/ take most), and start "
        "again"
    )


def _free(home: Home) -> int:
    disk = os.statvfs(home.root)
    return disk.f_bavail * disk.f_frsize
