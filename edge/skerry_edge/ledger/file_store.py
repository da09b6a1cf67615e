"""Files of tenants: what batches read and write. A bounded SQLite file, kept for a stated time.

Contents lie in pieces, so that neither storing nor sending a file holds the whole of it in memory.
Calls block and may come from any thread; they raise `Unavailable` when the store cannot be used.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from skerry.errors import BodyTooLarge, QuotaExceeded, Unavailable
from skerry_regions.drivers.sqlite_file import SqliteFile
from skerry_regions.drivers.sqlite_steps import added_column

PIECE_BYTES = 256 << 10
TTL_SECONDS = 30 * 86400.0
MAX_FILE_BYTES = 256 << 20
MAX_TENANT_BYTES = 2 << 30
MAX_TENANT_FILES = 10_000
TRANSACTION_PIECES = 16  # that are written at once, while other threads wait
UPLOAD_SECONDS = 3600.0  # in which a file must be whole
NOBODY = ""  # the tenant of files that are not whole yet

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
_STEPS = (_SCHEMA, added_column("files", "residency", "TEXT"))
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
    """Files by tenant and id; none finds another's."""

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
        self._file = SqliteFile(path, _STEPS)
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
        """Keep a file, whole or not at all, in place of an earlier one of that id. Other calls get
        their turn while it is written, and find it when it is whole.

        Of what tenants send: raises `BodyTooLarge`, or `QuotaExceeded` when their files leave no
        room. What batches write is bounded by their queue.
        """
        number = self._begin(tenant, id, filename, purpose, residency)
        try:
            self._fill(number, tenant, id, purpose, chunks)
            return self._finish(number, tenant, id)
        except BaseException:
            self._forget(number)
            raise

    def _begin(
        self, tenant: str, id: str, filename: str, purpose: Purpose, residency: str | None
    ) -> int:
        """Make a file without an owner, to be filled; return its number. It expires soon, in case
        it is never ended."""
        now = self._wall_clock()
        with self._file.transaction() as database:
            database.execute("DELETE FROM files WHERE expires <= ?", (now,))
            self._check_room(database, tenant, id, purpose)
            (number,) = database.execute(
                "INSERT INTO files (tenant, id, filename, purpose, created, expires, residency)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING number",
                (NOBODY, uuid.uuid4().hex, filename, purpose, now, now + UPLOAD_SECONDS, residency),
            ).fetchone()
        return int(number)

    def _fill(
        self, number: int, tenant: str, id: str, purpose: Purpose, chunks: Iterable[bytes]
    ) -> None:
        """Write the content in transactions of a few pieces, between which others have the file;
        the chunks come outside of them."""
        pieces = enumerate(_pieces(chunks))
        size = 0
        while group := list(islice(pieces, TRANSACTION_PIECES)):
            size += sum(len(piece) for _, piece in group)
            with self._file.transaction() as database:
                self._check_room(database, tenant, id, purpose, size)
                database.executemany(
                    "INSERT INTO pieces VALUES (?, ?, ?)",
                    [(number, position, piece) for position, piece in group],
                )
                database.execute("UPDATE files SET size = ? WHERE number = ?", (size, number))

    def _finish(self, number: int, tenant: str, id: str) -> StoredFile:
        """Give a file that is whole to its tenant."""
        with self._file.transaction() as database:
            database.execute("DELETE FROM files WHERE tenant = ? AND id = ?", (tenant, id))
            found = database.execute(
                "SELECT purpose, size, created FROM files WHERE number = ?", (number,)
            ).fetchone()
            if found is None:
                raise Unavailable("The file took too long to be stored.")
            purpose, size, created = found
            self._check_room(database, tenant, id, purpose, size)  # others may have come meanwhile
            row = database.execute(
                "UPDATE files SET tenant = ?, id = ?, expires = ? WHERE number = ?"
                f" RETURNING {_RECORD}",
                (tenant, id, created + self._ttl_seconds, number),
            ).fetchone()
        return _stored(row)

    def _forget(self, number: int) -> None:
        # Where the store cannot be used now, the file expires.
        with contextlib.suppress(Unavailable), self._file.transaction() as database:
            database.execute("DELETE FROM files WHERE number = ?", (number,))

    def _check_room(
        self,
        database: sqlite3.Connection,
        tenant: str,
        id: str,
        purpose: Purpose,
        size: int = 0,
    ) -> None:
        """Check that a file of `size` bytes may come to a tenant's others. Raises as `put`."""
        if purpose != "batch":
            return
        if size > self._max_file_bytes:
            raise BodyTooLarge(f"The file exceeds {self._max_file_bytes} bytes.")
        number, stored = database.execute(
            "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM files WHERE tenant = ? AND id <> ?",
            (tenant, id),
        ).fetchone()
        if number >= self._max_tenant_files:
            raise QuotaExceeded(f"{number} files are stored already; delete some.")
        if stored + size > self._max_tenant_bytes:
            raise QuotaExceeded(
                f"Files may take {self._max_tenant_bytes} bytes in all; delete some."
            )

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
        """Return a tenant's files in order of their making, those that follow the file `after`."""
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
        """Return one piece of a file's content; None behind the last one."""
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


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of one size."""
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
