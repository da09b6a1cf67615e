"""SQLite files of an edge, used off the event loop and in bounds."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from skerry.errors import Unavailable
from skerry_regions.drivers.sqlite_file import SqliteFile
from skerry_regions.drivers.sqlite_steps import Steps

T = TypeVar("T")
Begin = Callable[[], AbstractContextManager[sqlite3.Connection]]

BUSY_SECONDS = 2.0  # another process of this machine may be writing
UNBOUNDED = 1 << 62


class DatabaseThread:
    """A file and the one thread that uses it, so that no event loop waits for a disk.

    Futures raise `Unavailable` when the file cannot be used; at once when too much is waiting
    already, because the disk does not keep up, and after `close`.
    """

    def __init__(
        self,
        path: Path,
        steps: Steps,
        *,
        name: str,
        max_waiting: int = 256,
    ) -> None:
        self._file = SqliteFile(path, steps, is_durable=False, busy_seconds=BUSY_SECONDS)
        self._room = threading.BoundedSemaphore(max_waiting)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def write(self, work: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Run `work` as one transaction, alone in the file."""
        return self._submit(self._file.transaction, work)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Run `work`, which only reads, on one state of the file."""
        return self._submit(self._file.reading, work)

    def _submit(self, begin: Begin, work: Callable[[sqlite3.Connection], T]) -> Future[T]:
        if not self._room.acquire(blocking=False):
            return _refused("too much is waiting to be written")
        try:
            future = self._thread.submit(_run, begin, work)
        except RuntimeError:
            self._room.release()
            return _refused("the file is closed")
        future.add_done_callback(lambda _: self._room.release())  # also when it is cancelled
        return future

    def close(self) -> None:
        """Finish what was submitted. Idempotent."""
        self._thread.shutdown(wait=True)
        self._file.close()


def make_room(
    database: sqlite3.Connection,
    table: str,
    tenant: str,
    max_tenant_bytes: int,
    max_bytes: int,
    max_rows: int = UNBOUNDED,
) -> None:
    """Delete the oldest rows of a tenant, then of all, until the others fit. `max_rows` is for
    either. `table` is a name of ours; its rows have a number, a tenant and a size."""
    for condition, values, most in (
        ("tenant = ?", (tenant,), max_tenant_bytes),
        ("TRUE", (), max_bytes),
    ):
        rows, size = database.execute(
            f"SELECT COUNT(*), COALESCE(SUM(size), 0) FROM {table} WHERE {condition}", values
        ).fetchone()
        oldest = database.execute(
            f"SELECT number, size FROM {table} WHERE {condition} ORDER BY number", values
        )
        going: list[tuple[int]] = []
        while size > most or rows - len(going) > max_rows:
            number, freed = oldest.fetchone()
            going.append((number,))
            size -= freed
        database.executemany(f"DELETE FROM {table} WHERE number = ?", going)


def _run(begin: Begin, work: Callable[[sqlite3.Connection], T]) -> T:
    with begin() as database:
        return work(database)


def _refused(reason: str) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(Unavailable(reason))
    return future
