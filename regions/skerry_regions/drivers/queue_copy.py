"""Batches as they are copied from one queue to another, and the queue of a home as one end."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
from msgspec import Struct

from skerry_regions.drivers.queue_file import RECORD, SCHEMA, record_of
from skerry_regions.drivers.sqlite_file import SqliteFile
from skerry_regions.queue import BatchRecord, ItemState, NewBatch


class CopiedItem(Struct, frozen=True, array_like=True):
    """A request of a batch, wherever it is."""

    reference: str | None
    payload: bytes  # empty once it is done for good
    state: ItemState
    attempts: int
    result: bytes


class CopiedBatch(Struct, frozen=True):
    """All that a queue knows of a batch, but for who holds which of its items."""

    new: NewBatch
    record: BatchRecord
    items: list[CopiedItem]


class SqliteBatches:
    """The queue of a home as one end of a copy; see `skerry_edge.shared.copies.tables`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = SqliteFile(path, (SCHEMA,))

    def keys(self) -> list[str]:
        """Return ids, oldest first."""
        if not self._path.exists():
            return []
        with self._file.reading() as database:
            return [id for (id,) in database.execute("SELECT id FROM batches ORDER BY number")]

    def read(self, key: str) -> CopiedBatch | None:
        with self._file.reading() as database:
            row = database.execute(
                f"SELECT number, token, target, key, fingerprint, {RECORD} FROM batches"
                " WHERE id = ?",
                (key,),
            ).fetchone()
            if row is None:
                return None
            number, token, target, idempotency_key, fingerprint, *rest = row
            items = database.execute(
                "SELECT reference, payload, state, attempts, result FROM items WHERE batch = ?"
                " ORDER BY position",
                (number,),
            ).fetchall()
        record = record_of(rest)
        new = NewBatch(
            id=record.id, tenant=record.tenant, token=token, kind=record.kind, model=record.model,
            target=target, meta=record.meta, key=idempotency_key, fingerprint=fingerprint,
            window_seconds=record.expires_at - record.created_at,
        )  # fmt: skip
        return CopiedBatch(new, record, [CopiedItem(*item) for item in items])

    def write(self, batch: CopiedBatch) -> None:
        """Keep a batch as it was elsewhere, whole or not at all."""
        with self._file.transaction() as database:
            number = _insert(database, batch.new, batch.record)
            if number is not None:
                database.executemany(
                    "INSERT INTO items (batch, position, reference, payload, state, attempts,"
                    " result) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        (number, position, each.reference, each.payload, each.state, each.attempts,
                         each.result)
                        for position, each in enumerate(batch.items)
                    ),
                )  # fmt: skip

    def close(self) -> None:
        self._file.close()


def _insert(database: sqlite3.Connection, new: NewBatch, record: BatchRecord) -> int | None:
    """Return the number of a batch that is new here."""
    row = database.execute(
        f"INSERT INTO batches ({RECORD}, token, target, key, fingerprint)"
        f" VALUES ({', '.join('?' * 20)}) ON CONFLICT (id) DO NOTHING RETURNING number",
        (
            *msgspec.structs.astuple(record), new.token, new.target, new.key, new.fingerprint,
        ),
    ).fetchone()  # fmt: skip
    return None if row is None else int(row[0])
