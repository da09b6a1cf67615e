"""Files of tenants: what batches read and write. A bounded SQLite file, kept for a stated time.

Contents lie in pieces, so that neither storing nor sending a file holds the whole of it in memory.
Calls block and may come from any thread; they raise `Unavailable` when the store cannot be used.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from skerry.errors import BodyTooLarge, QuotaExceeded
from skerry_regions.drivers.sqlite_file import SqliteFile

PIECE_BYTES = 256 << 10
TTL_SECONDS = 30 * 86400.0
MAX_FILE_BYTES = 256 << 20
MAX_TENANT_BYTES = 2 << 30
MAX_TENANT_FILES = 10_000

Purpose = Literal["batch", "batch_output"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, id TEXT NOT NULL,
    filename TEXT NOT NULL, purpose TEXT NOT NULL, created REAL NOT NULL, expires REAL NOT NULL,
    size INTEGER NOT NULL DEFAULT 0, residency TEXT, UNIQUE (tenant, id)
);
CREATE INDEX IF NOT EXISTS files_expire ON files (expires);
CREATE TABLE IF NOT EXISTS pieces (
    file INTEGER NOT NULL REFERENCES files (number) ON DELETE CASCADE,
    position INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (file, position)
);
"""
_RECORD = "id, filename, purpose, created, expires, size, residency"


class StoredFile(Struct, frozen=True, kw_only=True):
    """What is known of a file. Times are Unix seconds, `size` is bytes."""

    id: str
    filename: str
    purpose: Purpose
    created_at: float
    expires_at: float
    size: int
    residency: str | None = None  # zone that what it says never leaves


class FileStore:
    """Files by tenant and id; nobody finds another tenant's."""

    def __init__(
        self,
        path: Path,
        *,
        ttl_seconds: float = TTL_SECONDS,
        max_file_bytes: int = MAX_FILE_BYTES,
        max_tenant_bytes: int = MAX_TENANT_BYTES,
        max_tenant_files: int = MAX_TENANT_FILES,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = SqliteFile(path, _SCHEMA, _add_residency)
        self._ttl_seconds = ttl_seconds
        self._max_file_bytes = max_file_bytes
        self._max_tenant_bytes = max_tenant_bytes
        self._max_tenant_files = max_tenant_files
        self._wall_clock = wall_clock

    def close(self) -> None:
        self._file.close()

    def put(
        self,
        tenant: str,
        id: str,
        filename: str,
        purpose: Purpose,
        chunks: Iterable[bytes],
        *,
        residency: str | None = None,
    ) -> StoredFile:
        """Keep a file, whole or not at all, in place of an earlier one of that id.

        Of what tenants send: raises `BodyTooLarge`, or `QuotaExceeded` when their files leave no
        room. What batches write is bounded by their queue.
        """
        now = self._wall_clock()
        with self._file.transaction() as database:
            database.execute("DELETE FROM files WHERE expires <= ?", (now,))
            database.execute("DELETE FROM files WHERE tenant = ? AND id = ?", (tenant, id))
            number, stored = database.execute(
                "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM files WHERE tenant = ?", (tenant,)
            ).fetchone()
            is_bounded = purpose == "batch"
            if is_bounded and number >= self._max_tenant_files:
                raise QuotaExceeded(f"{number} files are stored already; delete some.")
            key = database.execute(
                "INSERT INTO files (tenant, id, filename, purpose, created, expires, residency)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (tenant, id, filename, purpose, now, now + self._ttl_seconds, residency),
            ).lastrowid
            size = 0
            for position, piece in enumerate(_pieces(chunks)):
                size += len(piece)
                if is_bounded and size > self._max_file_bytes:
                    raise BodyTooLarge(f"The file exceeds {self._max_file_bytes} bytes.")
                if is_bounded and stored + size > self._max_tenant_bytes:
                    raise QuotaExceeded(
                        f"Files may take {self._max_tenant_bytes} bytes in all; delete some."
                    )
                database.execute("INSERT INTO pieces VALUES (?, ?, ?)", (key, position, piece))
            row = database.execute(
                f"UPDATE files SET size = ? WHERE number = ? RETURNING {_RECORD}", (size, key)
            ).fetchone()
        return _stored(row)

    def get(self, tenant: str, id: str) -> StoredFile | None:
        with self._file.reading() as database:
            row = database.execute(
                f"SELECT {_RECORD} FROM files WHERE tenant = ? AND id = ? AND expires > ?",
                (tenant, id, self._wall_clock()),
            ).fetchone()
        return None if row is None else _stored(row)

    def page(
        self,
        tenant: str,
        *,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = True,
    ) -> list[StoredFile]:
        """A tenant's files in order of their making, those that follow the file `after`."""
        comparison, order = ("<", "DESC") if newest_first else (">", "ASC")
        with self._file.reading() as database:
            rows = database.execute(
                f"SELECT {_RECORD} FROM files WHERE tenant = ?1 AND expires > ?2"
                " AND (?3 IS NULL OR purpose = ?3) AND (?4 IS NULL OR number"
                f" {comparison} (SELECT number FROM files WHERE tenant = ?1 AND id = ?4))"
                f" ORDER BY number {order} LIMIT ?5",
                (tenant, self._wall_clock(), purpose, after, limit),
            ).fetchall()
        return [_stored(row) for row in rows]

    def piece(self, tenant: str, id: str, position: int) -> bytes | None:
        """One piece of a file's content; None behind the last one."""
        with self._file.reading() as database:
            row = database.execute(
                "SELECT data FROM pieces JOIN files ON files.number = file"
                " WHERE tenant = ? AND id = ? AND position = ?",
                (tenant, id, position),
            ).fetchone()
        return None if row is None else bytes(row[0])

    def delete(self, tenant: str, id: str) -> bool:
        """Forget a file. False if there is none."""
        with self._file.transaction() as database:
            found = database.execute(
                "DELETE FROM files WHERE tenant = ? AND id = ?", (tenant, id)
            ).rowcount
        return found > 0


def _add_residency(database: sqlite3.Connection) -> None:
    """Stores of before files had zones lack the column."""
    columns = {name for _, name, *_ in database.execute("PRAGMA table_info(files)")}
    if "residency" not in columns:
        database.execute("ALTER TABLE files ADD COLUMN residency TEXT")


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of one size."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        while len(held) >= PIECE_BYTES:
            yield bytes(held[:PIECE_BYTES])
            del held[:PIECE_BYTES]
    if held:
        yield bytes(held)


def _stored(row: Sequence[Any]) -> StoredFile:
    return StoredFile(**dict(zip(StoredFile.__struct_fields__, row, strict=True)))
