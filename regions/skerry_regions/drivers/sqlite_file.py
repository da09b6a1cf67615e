"""A durable SQLite file in write-ahead mode: opened when first needed, shared by processes."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Generator
from pathlib import Path

from skerry.errors import Unavailable

BUSY_SECONDS = 5.0

logger = logging.getLogger(__name__)


class SqliteFile:
    """One connection, used by one thread at a time. What is committed survives a power cut."""

    def __init__(
        self,
        path: Path,
        schema: str,
        prepare: Callable[[sqlite3.Connection], None] = lambda database: None,
    ) -> None:
        """`prepare` is called inside a transaction each time the file was opened."""
        self._path = path
        self._schema = schema
        self._prepare = prepare
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None

    @contextlib.contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Committed at its end, undone by an exception. Raises `Unavailable` when the file fails.

        It excludes writers of other processes from the start, so what is read stays true.
        """
        with self._begun("BEGIN IMMEDIATE") as database:
            yield database

    @contextlib.contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        """One state of the file, to read only: waits for nobody. Raises `Unavailable`."""
        with self._begun("BEGIN") as database:
            yield database

    @contextlib.contextmanager
    def _begun(self, begin: str) -> Generator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._database is None:
                    self._database = self._open()
                with _transaction(self._database, begin):
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
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        database = sqlite3.connect(
            self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._path.chmod(0o600)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA foreign_keys = ON")
            database.executescript(self._schema)
            with _transaction(database, "BEGIN IMMEDIATE"):
                self._prepare(database)
        except BaseException:
            database.close()
            raise
        return database


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection, begin: str) -> Generator[None]:
    database.execute(begin)
    try:
        yield
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")
