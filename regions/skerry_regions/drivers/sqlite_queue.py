"""The batch queue of one home: a SQLite file that its edges share."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from skerry_regions.drivers.queue_bounds import check_stored, check_waiting, submission_bytes
from skerry_regions.drivers.queue_file import RECORD, one_record, record_of
from skerry_regions.drivers.queue_work import QueueWork
from skerry_regions.queue import (
    BatchRecord,
    ItemResult,
    KeyInUse,
    NewBatch,
    NewItem,
)


class SqliteQueue(QueueWork):
    """See `Queue`; here is the tenants' side."""

    def submit(self, batch: NewBatch, items: Sequence[NewItem]) -> BatchRecord:
        size = submission_bytes(self._limits, batch, items)
        now = self._wall_clock()
        with self._file.transaction() as database:
            if batch.key is not None:
                known = database.execute(
                    f"SELECT fingerprint, {RECORD} FROM batches WHERE tenant = ? AND key = ?",
                    (batch.tenant, batch.key),
                ).fetchone()
                if known is not None and known[0] != batch.fingerprint:
                    raise KeyInUse(f"the key {batch.key!r} belongs to a batch of other items")
                if known is not None:
                    return record_of(known[1:])
            self._check_waiting(database, batch.tenant, len(items))
            self._check_stored(database, batch.tenant, size)
            row = database.execute(
                "INSERT INTO batches (id, tenant, token, kind, model, target, meta, key,"
                " fingerprint, created, expires, ended, ending, total, bytes)"
                f" VALUES ({', '.join('?' * 15)}) RETURNING number, {RECORD}",
                (
                    batch.id, batch.tenant, batch.token, batch.kind, batch.model, batch.target,
                    batch.meta, batch.key, batch.fingerprint, now, now + batch.window_seconds,
                    None if items else now, None if items else "completed", len(items), size,
                ),
            ).fetchone()  # fmt: skip
            database.executemany(
                "INSERT INTO items (batch, position, reference, payload) VALUES (?, ?, ?, ?)",
                (
                    (row[0], position, item.reference, item.payload)
                    for position, item in enumerate(items)
                ),
            )
            return record_of(row[1:])

    def batch(self, tenant: str | None, id: str) -> BatchRecord | None:
        with self._file.reading() as database:
            return one_record(database, "(?1 IS NULL OR tenant = ?1) AND id = ?2", tenant, id)

    def batches(
        self, *, tenant: str | None = None, kind: str | None = None,
        after: str | None = None, limit: int = 100,
    ) -> list[BatchRecord]:  # fmt: skip
        with self._file.reading() as database:
            rows = database.execute(
                f"SELECT {RECORD} FROM batches WHERE (?1 IS NULL OR tenant = ?1)"
                " AND (?2 IS NULL OR kind = ?2) AND (?3 IS NULL OR number <"
                " (SELECT number FROM batches WHERE id = ?3 AND (?1 IS NULL OR tenant = ?1)))"
                " ORDER BY number DESC LIMIT ?4",
                (tenant, kind, after, limit),
            ).fetchall()
        return [record_of(row) for row in rows]

    def results(self, batch: str, *, after: int = -1, limit: int = 100) -> list[ItemResult]:
        with self._file.reading() as database:
            rows = database.execute(
                "SELECT position, reference, state, result FROM items"
                " WHERE batch = (SELECT number FROM batches WHERE id = ?) AND position > ?"
                " AND state <> 'waiting' ORDER BY position LIMIT ?",
                (batch, after, limit),
            ).fetchall()
        return [
            ItemResult(index=index, reference=reference, state=state, result=bytes(result))
            for index, reference, state, result in rows
        ]

    def cancel(self, tenant: str, id: str) -> BatchRecord | None:
        with self._file.transaction() as database:
            numbers = database.execute(
                "SELECT number FROM batches WHERE tenant = ? AND id = ? AND ended IS NULL",
                (tenant, id),
            ).fetchall()
            for (number,) in numbers:
                self._end(database, number, "cancelled")
            return one_record(database, "tenant = ? AND id = ?", tenant, id)

    def retry(self, tenant: str, id: str) -> int:
        with self._file.transaction() as database:
            found = database.execute(
                "SELECT number, expires - created, dead FROM batches WHERE tenant = ? AND id = ?"
                " AND (ended IS NULL OR ending = 'completed')",
                (tenant, id),
            ).fetchone()
            if found is None:
                return 0
            number, window, dead = found
            self._check_waiting(database, tenant, dead)
            (freed,) = database.execute(
                "SELECT COALESCE(SUM(length(result)), 0) FROM items"
                " WHERE batch = ? AND state = 'dead'",
                (number,),
            ).fetchone()
            revived = database.execute(
                "UPDATE items SET state = 'waiting', attempts = 0, due = 0, result = x''"
                " WHERE batch = ? AND state = 'dead'",
                (number,),
            ).rowcount
            if revived:
                database.execute(
                    "UPDATE batches SET failed = failed - dead, dead = 0, expires = ?,"
                    " ended = NULL, ending = NULL, closed = NULL, bytes = bytes - ?"
                    " WHERE number = ?",
                    (self._wall_clock() + window, freed, number),
                )
        return revived

    def _check_waiting(self, database: sqlite3.Connection, tenant: str, num_items: int) -> None:
        """Raises QueueRefused when so many more may not wait."""
        (waiting,) = database.execute(
            "SELECT COALESCE(SUM(total - succeeded - failed), 0) FROM batches"
            " WHERE tenant = ? AND ended IS NULL",
            (tenant,),
        ).fetchone()
        check_waiting(self._limits, waiting, num_items)

    def _check_stored(self, database: sqlite3.Connection, tenant: str, size: int) -> None:
        """Raises QueueRefused when so many more bytes may not be stored."""
        (stored,) = database.execute(
            "SELECT COALESCE(SUM(bytes), 0) FROM batches WHERE tenant = ?", (tenant,)
        ).fetchone()
        check_stored(self._limits, stored, size)
