"""Downloaded files by their SHA-256, each fetched once however many models and processes want it.

    models/.blobs/{sha256}            whole and checked; models' folders link to it
    models/.blobs/{sha256}.part       being downloaded, with its journal
    models/.locks/blob-{sha256}       held while it is downloaded

A blob that no model links to any more is removed by `sweep`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from skerry_regions.models.problems import PullError
from skerry_regions.models.sources import Progress

PART_SECONDS: Final = 7 * 24 * 3600.0  # that an unfinished download is kept
SPARE: Final = 256 << 20  # bytes that a download leaves free on the disk


class Blobs:
    """The blobs under one SKERRY_HOME. Safe to use from several processes at once."""

    def __init__(
        self, root: Path, free_bytes: Callable[[Path], int] = lambda path: disk_free(path)
    ) -> None:
        """`root` is the home's `models`."""
        self._folder = root / ".blobs"
        self._locks = root / ".locks"
        self._free_bytes = free_bytes

    def link(self, sha256: str, target: Path) -> bool:
        """Give a whole blob another name at `target`; False when it is not here."""
        target.unlink(missing_ok=True)
        try:
            os.link(self._folder / sha256, target)
        except FileNotFoundError:
            return False
        return True

    def put(self, data: bytes) -> str:
        """Keep a small file; its SHA-256."""
        sha256 = hashlib.sha256(data).hexdigest()
        self._folder.mkdir(parents=True, exist_ok=True)
        draft = self._folder / f"{sha256}.{os.getpid()}.new"
        draft.write_bytes(data)
        os.replace(draft, self._folder / sha256)
        return sha256

    def obtain(
        self, sha256: str, size: int, name: str, fetch: Callable[[Path], None], progress: Progress
    ) -> None:
        """Have `fetch` bring a blob to the path that it is given, unless it is here.

        A process that comes second waits for the first, and finds the blob. Raises `PullError` when
        the disk has no room, and what `fetch` raises.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        waiting = f"waiting for another download of {name}"
        with held_lock(self._lock_file(sha256), waiting, progress):
            path = self._folder / sha256
            if path.exists() and path.stat().st_size == size:
                return
            self._check_room(sha256, size, name)
            fetch(path)

    def forget(self, sha256: str) -> None:
        """Delete a blob that turned out to be damaged."""
        (self._folder / sha256).unlink(missing_ok=True)

    def sweep(self, now: float) -> None:
        """Delete blobs that no model links to, and parts that were not continued for a week.

        `now` is in Unix seconds.
        """
        for path in list(self._folder.glob("*")) if self._folder.exists() else []:
            with self._lock_now(path.name.partition(".")[0]) as is_ours:
                if not is_ours or not path.exists():
                    continue
                status = path.stat()
                is_part = "." in path.name
                is_old = now - status.st_mtime > PART_SECONDS
                if (is_part and is_old) or (not is_part and status.st_nlink == 1):
                    path.unlink()

    def _check_room(self, sha256: str, size: int, name: str) -> None:
        part = self._folder / f"{sha256}.part"
        there = part.stat().st_blocks * 512 if part.exists() else 0
        wanted, free = max(size - there, 0), self._free_bytes(self._folder)
        if wanted + SPARE > free:
            raise PullError(
                f"{name}: {wanted / 1e9:,.1f} GB are to be downloaded, and the disk of "
                f"{self._folder.parent} has {free / 1e9:,.1f} GB free. Make room "
                "(`skerry models remove`), or set SKERRY_HOME to a larger disk."
            )

    @contextmanager
    def _lock_now(self, sha256: str) -> Generator[bool]:
        with self._lock_file(sha256).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def _lock_file(self, sha256: str) -> Path:
        self._locks.mkdir(parents=True, exist_ok=True)
        return self._locks / f"blob-{sha256}"


@contextmanager
def held_lock(path: Path, waiting: str, progress: Progress) -> Generator[None]:
    """Hold a lock; `waiting` is reported while another process does. The system releases it when
    the process ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(waiting, 0.0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def disk_free(path: Path) -> int:
    """Return bytes that a user may still write to the disk of `path`."""
    return shutil.disk_usage(path).free
