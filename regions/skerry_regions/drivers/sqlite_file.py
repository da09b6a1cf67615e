"""A SQLite file in write-ahead mode: opened when first needed, shared by processes."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from skerry.errors import Unavailable
from skerry_regions.drivers.sqlite_steps import Steps, migrate, transaction

BUSY_SECONDS = 5.0
_TRY_AGAIN_SECONDS = 0.005

logger = logging.getLogger(__name__)


class SqliteFile:
    """One connection, used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        steps: Steps,
        prepare: Callable[[sqlite3.Connection], None] = lambda database: None,
        *,
        is_durable: bool = True,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        """`prepare` is called inside a transaction each time the file was opened; the others are
        those of `open_database`."""
        self._path = path
        self._steps = steps
        self._prepare = prepare
        self._is_durable = is_durable
        self._busy_seconds = busy_seconds
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Open a transaction, committed at its end, undone by an exception. Raises `Unavailable`
        when the file fails.

        It excludes writers of other processes from the start, so what is read stays true.
        """
        return self._begun("BEGIN IMMEDIATE")

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """Read one state of the file; wait for no writer. Raises `Unavailable`."""
        return self._begun("BEGIN")

    @contextmanager
    def _begun(self, begin: str) -> Generator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._database is None:
                    self._database = self._open()
                with transaction(self._database, begin):
                    yield self._database
            except (sqlite3.Error, OSError) as error:
                logger.warning("%s: %s", self._path, error)
                raise Unavailable(f"{self._path.name} cannot be used now.") from error

    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _open(self) -> sqlite3.Connection:
        database = open_database(
            self._path, self._steps, is_durable=self._is_durable, busy_seconds=self._busy_seconds
        )
        try:
            with transaction(database):
                self._prepare(database)
        except BaseException:
            database.close()
            raise
        return database


def open_database(
    path: Path, steps: Steps, *, is_durable: bool, busy_seconds: float
) -> sqlite3.Connection:
    """Return a file that only its owner can read, made if it is missing, in the form of these
    `steps`; for one thread at a time. What is written is written in a `transaction`.

    `is_durable`: what is committed survives a power cut. `busy_seconds`: how long other processes'
    writing is waited for. Raises sqlite3.Error or OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = sqlite3.connect(
        path, timeout=busy_seconds, isolation_level=None, check_same_thread=False
    )
    try:
        path.chmod(0o600)
        write_ahead(database, busy_seconds)
        database.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
        database.execute("PRAGMA foreign_keys = ON")
        migrate(database, steps)
    except BaseException:
        database.close()
        raise
    return database


def write_ahead(database: sqlite3.Connection, busy_seconds: float) -> None:
    """Put a file into write-ahead mode, where it then stays.

    SQLite takes the exclusive lock for this by upgrading a shared one, and to keep clear of a
    deadlock calls no busy handler there: of two processes that make one file, the connection's own
    time-out leaves one with "database is locked" at once. So the waiting is done here.
    Raises sqlite3.OperationalError after `busy_seconds`.
    """
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_TRY_AGAIN_SECONDS)
