"""SQLite files of an edge: how they are opened, used off the event loop, and kept in bounds."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

BUSY_SECONDS = 2.0  # another process of this machine may be writing


def open_database(path: Path, schema: str) -> sqlite3.Connection:
    """A file that only its owner can read, made if it is missing; for one thread at a time.

    Raises sqlite3.Error or OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
    path.chmod(0o600)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.executescript(schema)
    return database


class DatabaseThread:
    """A file and the one thread that uses it, so that no event loop waits for a disk.

    The file is opened when it is first needed, and tried again after a failure.
    """

    def __init__(self, path: Path, schema: str, *, name: str, max_waiting: int = 256) -> None:
        self._path = path
        self._schema = schema
        self._room = threading.BoundedSemaphore(max_waiting)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._database: sqlite3.Connection | None = None

    def submit(self, work: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Run `work` as one transaction.

        The future raises sqlite3.Error or OSError; `sqlite3.OperationalError` at once when too
        much is waiting already, because the disk does not keep up, and after `close`.
        """
        if not self._room.acquire(blocking=False):
            return _refused("too much is waiting to be written")
        try:
            future = self._thread.submit(self._transact, work)
        except RuntimeError:
            self._room.release()
            return _refused("the file is closed")
        future.add_done_callback(lambda _: self._room.release())  # also when it is cancelled
        return future

    def close(self) -> None:
        """Finish what was submitted. Idempotent."""
        self._thread.shutdown(wait=True)
        if self._database is not None:
            self._database.close()
            self._database = None

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._database is None:
            self._database = open_database(self._path, self._schema)
        with self._database:
            return work(self._database)


def _refused(reason: str) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(sqlite3.OperationalError(reason))
    return future
