"""Files of tenants in a SQLite file, which the edges of one home share."""

from __future__ import annotations

import contextlib
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from skerry.errors import Unavailable
from skerry_edge.ledger.files import (
    PIECE_BYTES,
    REPLACED,
    TOO_LONG,
    TTL_SECONDS,
    UPLOAD_SECONDS,
    FileBounds,
    KeptFiles,
    Purpose,
    StoredFile,
    pieces_of,
)
from skerry_regions.drivers.sqlite_file import SqliteFile
from skerry_regions.drivers.sqlite_steps import added_column

TRANSACTION_PIECES = 16  # that are written at once, while other threads wait
NOBODY = ""  # the tenant of files that are not whole yet

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
_RECORD = "id, filename, purpose, created, expires, size, residency, CAST(number AS TEXT)"


class FileStore(KeptFiles):
    """See `Files`."""

    def __init__(
        self,
        path: Path,
        *,
        ttl_seconds: float = TTL_SECONDS,
        bounds: FileBounds | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(ttl_seconds, bounds, wall_clock)
        self.file = SqliteFile(path, _STEPS)

    def close(self) -> None:
        self.file.close()

    def store(self, tenant: str, file: StoredFile, chunks: Iterable[bytes]) -> StoredFile:
        number = self._begin(tenant, file)
        try:
            self._fill(number, tenant, file.id, file.purpose, chunks)
            return self._finish(number, tenant, file)
        except BaseException:
            self._forget(number)
            raise

    def _begin(self, tenant: str, file: StoredFile) -> int:
        """Make a file without an owner, to be filled; return its number. It expires soon, in case
        it is never ended."""
        now = self._wall_clock()
        with self.file.transaction() as database:
            database.execute("DELETE FROM files WHERE expires <= ?", (now,))
            self._check_room(database, tenant, file.id, file.purpose)
            (number,) = database.execute(
                "INSERT INTO files (tenant, id, filename, purpose, created, expires, residency)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING number",
                (
                    NOBODY, uuid.uuid4().hex, file.filename, file.purpose, file.created_at,
                    now + UPLOAD_SECONDS, file.residency,
                ),
            ).fetchone()  # fmt: skip
        return int(number)

    def _fill(
        self, number: int, tenant: str, id: str, purpose: Purpose, chunks: Iterable[bytes]
    ) -> None:
        """Write the content in transactions of a few pieces, between which others have the file;
        the chunks come outside of them."""
        pieces = enumerate(pieces_of(chunks))
        size = 0
        while group := list(islice(pieces, TRANSACTION_PIECES)):
            size += sum(len(piece) for _, piece in group)
            with self.file.transaction() as database:
                self._check_room(database, tenant, id, purpose, size)
                database.executemany(
                    "INSERT INTO pieces VALUES (?, ?, ?)",
                    [(number, position, piece) for position, piece in group],
                )
                database.execute("UPDATE files SET size = ? WHERE number = ?", (size, number))

    def _finish(self, number: int, tenant: str, file: StoredFile) -> StoredFile:
        """Give a file that is whole to its tenant."""
        id = file.id
        with self.file.transaction() as database:
            database.execute("DELETE FROM files WHERE tenant = ? AND id = ?", (tenant, id))
            found = database.execute(
                "SELECT purpose, size FROM files WHERE number = ?", (number,)
            ).fetchone()
            if found is None:
                raise Unavailable(TOO_LONG)
            purpose, size = found
            self._check_room(database, tenant, id, purpose, size)  # others may have come meanwhile
            row = database.execute(
                "UPDATE files SET tenant = ?, id = ?, expires = ? WHERE number = ?"
                f" RETURNING {_RECORD}",
                (tenant, id, file.expires_at, number),
            ).fetchone()
        return _stored(row)

    def _forget(self, number: int) -> None:
        # Where the store cannot be used now, the file expires.
        with contextlib.suppress(Unavailable), self.file.transaction() as database:
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
        number, stored = database.execute(
            "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM files WHERE tenant = ? AND id <> ?",
            (tenant, id),
        ).fetchone()
        self._bounds.check(size, number, stored)

    def get(self, tenant: str, id: str) -> StoredFile | None:
        with self.file.reading() as database:
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
        comparison, order = ("<", "DESC") if newest_first else (">", "ASC")
        with self.file.reading() as database:
            rows = database.execute(
                f"SELECT {_RECORD} FROM files WHERE tenant = ?1 AND expires > ?2"
                " AND (?3 IS NULL OR purpose = ?3) AND (?4 IS NULL OR number"
                f" {comparison} (SELECT number FROM files WHERE tenant = ?1 AND id = ?4))"
                f" ORDER BY number {order} LIMIT ?5",
                (tenant, self._wall_clock(), purpose, after, limit),
            ).fetchall()
        return [_stored(row) for row in rows]

    def piece(self, tenant: str, file: StoredFile, position: int) -> bytes | None:
        if position * PIECE_BYTES >= file.size:
            return None
        with self.file.reading() as database:
            row = database.execute(
                "SELECT data FROM pieces JOIN files ON files.number = file"
                " WHERE tenant = ? AND id = ? AND file = ? AND position = ?",
                (tenant, file.id, int(file.content), position),
            ).fetchone()
        if row is None:
            raise Unavailable(REPLACED)
        return bytes(row[0])

    def delete(self, tenant: str, id: str) -> bool:
        with self.file.transaction() as database:
            found = database.execute(
                "DELETE FROM files WHERE tenant = ? AND id = ?", (tenant, id)
            ).rowcount
        return found > 0


def _stored(row: Sequence[Any]) -> StoredFile:
    return StoredFile(**dict(zip(StoredFile.__struct_fields__, row, strict=True)))
