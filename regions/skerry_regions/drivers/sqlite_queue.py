"""The batch queue of one home: a SQLite file that its edges share.

Leases and pauses are kept by the machine's boot clock; those of an earlier boot are over. Expiry of
batches and results is told in Unix seconds, because it outlives a boot.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from skerry_regions.drivers.sqlite_file import SqliteFile
from skerry_regions.drivers.sqlite_registry import boot_clock, boot_id
from skerry_regions.queue import (
    LEASE_SECONDS,
    BatchRecord,
    Claim,
    Ending,
    ItemResult,
    KeyInUse,
    NewBatch,
    NewItem,
    QueueLimits,
    QueueRefused,
    Settled,
)

PRUNED_AT_ONCE = 16  # batches; keeps the transaction short

_SCHEMA = """
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,
    token TEXT NOT NULL, kind TEXT NOT NULL, model TEXT NOT NULL, target TEXT NOT NULL,
    meta BLOB NOT NULL, key TEXT, fingerprint BLOB NOT NULL,
    created REAL NOT NULL, expires REAL NOT NULL, started REAL, ended REAL, ending TEXT,
    closed REAL, total INTEGER NOT NULL,
    succeeded INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL, UNIQUE (tenant, key)
);
CREATE INDEX IF NOT EXISTS batches_of_tenant ON batches (tenant, number);
CREATE INDEX IF NOT EXISTS batches_open ON batches (number) WHERE ended IS NULL;
CREATE INDEX IF NOT EXISTS batches_unclosed ON batches (number) WHERE closed IS NULL;
CREATE TABLE IF NOT EXISTS items (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    batch INTEGER NOT NULL REFERENCES batches (number) ON DELETE CASCADE,
    position INTEGER NOT NULL, reference TEXT, payload BLOB NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting', attempts INTEGER NOT NULL DEFAULT 0,
    due REAL NOT NULL DEFAULT 0, owner TEXT, result BLOB NOT NULL DEFAULT x'',
    UNIQUE (batch, position)
);
CREATE INDEX IF NOT EXISTS items_waiting ON items (batch, due, position) WHERE state = 'waiting';
CREATE INDEX IF NOT EXISTS items_owned ON items (owner) WHERE owner IS NOT NULL;
CREATE TABLE IF NOT EXISTS turns (tenant TEXT PRIMARY KEY, turn INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leader (
    one INTEGER PRIMARY KEY CHECK (one = 1), owner TEXT NOT NULL, until REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS boot (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL);
"""
_RECORD = (
    "id, tenant, kind, model, meta, created, expires, started, ended, ending, closed, total,"
    " succeeded, failed, dead, bytes"
)
_HELD = "number = ? AND owner = ? AND state = 'waiting'"


class SqliteQueue:
    """See `Queue`."""

    def __init__(
        self,
        path: Path,
        limits: QueueLimits | None = None,
        *,
        clock: Callable[[], float] = boot_clock,
        wall_clock: Callable[[], float] = time.time,
        boot: str | None = None,
    ) -> None:
        self._limits = limits or QueueLimits()
        self._clock = clock
        self._wall_clock = wall_clock
        self._boot = boot if boot is not None else boot_id()
        self._file = SqliteFile(path, _SCHEMA, self._forget_other_boots)

    def close(self) -> None:
        self._file.close()

    def _forget_other_boots(self, database: sqlite3.Connection) -> None:
        known = database.execute("SELECT id FROM boot").fetchone()
        if known == (self._boot,):
            return
        database.execute("INSERT OR REPLACE INTO boot VALUES (1, ?)", (self._boot,))
        database.execute("DELETE FROM leader")
        database.execute("UPDATE items SET due = 0, owner = NULL WHERE state = 'waiting'")

    # --- what tenants do -------------------------------------------------------------------------

    def submit(self, batch: NewBatch, items: Sequence[NewItem]) -> BatchRecord:
        size = self._check(batch, items)
        now = self._wall_clock()
        with self._file.transaction() as database:
            if batch.key is not None:
                known = database.execute(
                    f"SELECT fingerprint, {_RECORD} FROM batches WHERE tenant = ? AND key = ?",
                    (batch.tenant, batch.key),
                ).fetchone()
                if known is not None and known[0] != batch.fingerprint:
                    raise KeyInUse(f"the key {batch.key!r} belongs to a batch of other items")
                if known is not None:
                    return _record(known[1:])
            self._check_waiting(database, batch.tenant, len(items))
            self._check_stored(database, batch.tenant, size)
            row = database.execute(
                "INSERT INTO batches (id, tenant, token, kind, model, target, meta, key,"
                " fingerprint, created, expires, ended, ending, total, bytes)"
                f" VALUES ({', '.join('?' * 15)}) RETURNING number, {_RECORD}",
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
            return _record(row[1:])

    def batch(self, tenant: str | None, id: str) -> BatchRecord | None:
        with self._file.reading() as database:
            return _one(database, "(?1 IS NULL OR tenant = ?1) AND id = ?2", tenant, id)

    def batches(
        self, *, tenant: str | None = None, kind: str | None = None,
        after: str | None = None, limit: int = 100,
    ) -> list[BatchRecord]:  # fmt: skip
        with self._file.reading() as database:
            rows = database.execute(
                f"SELECT {_RECORD} FROM batches WHERE (?1 IS NULL OR tenant = ?1)"
                " AND (?2 IS NULL OR kind = ?2) AND (?3 IS NULL OR number <"
                " (SELECT number FROM batches WHERE id = ?3 AND (?1 IS NULL OR tenant = ?1)))"
                " ORDER BY number DESC LIMIT ?4",
                (tenant, kind, after, limit),
            ).fetchall()
        return [_record(row) for row in rows]

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
            return _one(database, "tenant = ? AND id = ?", tenant, id)

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

    def _check(self, batch: NewBatch, items: Sequence[NewItem]) -> int:
        """Bytes of a submission whose parts are within bounds. Raises QueueRefused."""
        limits = self._limits
        if len(items) > limits.batch_items:
            raise QueueRefused(f"a batch has at most {limits.batch_items} requests")
        if len(batch.meta) > limits.meta_bytes:
            raise QueueRefused(f"what a batch says of itself has at most {limits.meta_bytes} bytes")
        for index, item in enumerate(items):
            if len(item.payload) > limits.payload_bytes:
                raise QueueRefused(
                    f"request {index} has {len(item.payload)} bytes, at most {limits.payload_bytes}"
                )
        return sum(len(item.payload) for item in items)

    def _check_waiting(self, database: sqlite3.Connection, tenant: str, num_items: int) -> None:
        """Raises QueueRefused when so many more may not wait."""
        (waiting,) = database.execute(
            "SELECT COALESCE(SUM(total - succeeded - failed), 0) FROM batches"
            " WHERE tenant = ? AND ended IS NULL",
            (tenant,),
        ).fetchone()
        if waiting + num_items > self._limits.tenant_waiting:
            raise QueueRefused(
                f"{waiting} requests wait already, and with these {num_items} they would be more "
                f"than {self._limits.tenant_waiting}",
                is_full=True,
            )

    def _check_stored(self, database: sqlite3.Connection, tenant: str, size: int) -> None:
        """Raises QueueRefused when so many more bytes may not be stored."""
        (stored,) = database.execute(
            "SELECT COALESCE(SUM(bytes), 0) FROM batches WHERE tenant = ?", (tenant,)
        ).fetchone()
        if stored + size > self._limits.tenant_bytes:
            raise QueueRefused(
                f"requests and results take {stored} bytes already, and with these {size} they "
                f"would be more than {self._limits.tenant_bytes}",
                is_full=True,
            )

    # --- what workers do -------------------------------------------------------------------------

    def lead(self, owner: str, lease_seconds: float = LEASE_SECONDS) -> bool:
        now = self._clock()
        with self._file.transaction() as database:
            taken = database.execute(
                "INSERT INTO leader VALUES (1, ?1, ?2) ON CONFLICT (one) DO UPDATE"
                " SET owner = ?1, until = ?2 WHERE owner = ?1 OR until <= ?3",
                (owner, now + lease_seconds, now),
            )
        return taken.rowcount > 0

    def claim(
        self, owner: str, models: frozenset[str], limit: int,
        lease_seconds: float = LEASE_SECONDS,
    ) -> list[Claim]:  # fmt: skip
        claims: list[Claim] = []
        with self._file.transaction() as database:
            while len(claims) < limit:
                claim = self._claim_one(database, owner, sorted(models), lease_seconds)
                if claim is None:
                    break
                claims.append(claim)
        return claims

    def _claim_one(
        self, database: sqlite3.Connection, owner: str, models: list[str], lease_seconds: float
    ) -> Claim | None:
        """The next item of the tenant whose turn it is."""
        now, most = self._clock(), self._limits.attempts
        found = database.execute(
            "SELECT number, id, tenant, token, kind, model, target FROM batches"
            " LEFT JOIN turns USING (tenant)"
            f" WHERE ended IS NULL AND model IN ({', '.join('?' * len(models))})"
            " AND EXISTS (SELECT 1 FROM items WHERE batch = batches.number AND state = 'waiting'"
            " AND due <= ? AND attempts < ?) ORDER BY COALESCE(turn, 0), number LIMIT 1",
            (*models, now, most),
        ).fetchone()
        if found is None:
            return None
        number, id, tenant, token, kind, model, target = found
        item, position, payload, attempt = database.execute(
            "UPDATE items SET owner = ?, due = ?, attempts = attempts + 1 WHERE number ="
            " (SELECT number FROM items WHERE batch = ? AND state = 'waiting' AND due <= ?"
            " AND attempts < ? ORDER BY due, position LIMIT 1)"
            " RETURNING number, position, payload, attempts",
            (owner, now + lease_seconds, number, now, most),
        ).fetchone()
        database.execute(
            "INSERT OR REPLACE INTO turns"
            " VALUES (?, (SELECT COALESCE(MAX(turn), 0) + 1 FROM turns))",
            (tenant,),
        )
        database.execute(
            "UPDATE batches SET started = ? WHERE number = ? AND started IS NULL",
            (self._wall_clock(), number),
        )
        return Claim(
            item=item, owner=owner, batch=id, index=position, tenant=tenant, token=token, kind=kind,
            model=model, target=target, payload=bytes(payload), attempt=attempt,
            is_last=attempt >= most,
        )  # fmt: skip

    def renew(
        self, owner: str, items: Collection[int], lease_seconds: float = LEASE_SECONDS
    ) -> frozenset[int]:
        with self._file.transaction() as database:
            rows = database.execute(
                "UPDATE items SET due = ? WHERE owner = ? AND state = 'waiting'"
                f" AND number IN ({', '.join('?' * len(items))}) RETURNING number",
                (self._clock() + lease_seconds, owner, *items),
            ).fetchall()
        return frozenset(number for (number,) in rows)

    def settle(self, claim: Claim, state: Settled, result: bytes) -> bool:
        if len(result) > self._limits.result_bytes:
            raise ValueError(
                f"a result of {len(result)} bytes, at most {self._limits.result_bytes}"
            )
        with self._file.transaction() as database:
            held = database.execute(
                f"SELECT batch, length(payload) FROM items WHERE {_HELD}",
                (claim.item, claim.owner),
            ).fetchone()
            if held is None:
                return False
            batch, payload_bytes = held
            keeps_payload = state == "dead"
            database.execute(
                "UPDATE items SET state = ?, result = ?, owner = NULL,"
                " payload = CASE WHEN ? THEN payload ELSE x'' END WHERE number = ?",
                (state, result, keeps_payload, claim.item),
            )
            freed = 0 if keeps_payload else payload_bytes
            self._count(database, batch, state, len(result) - freed)
        return True

    def defer(self, claim: Claim, seconds: float, *, counts: bool) -> bool:
        with self._file.transaction() as database:
            deferred = database.execute(
                f"UPDATE items SET owner = NULL, due = ?, attempts = attempts - ? WHERE {_HELD}",
                (self._clock() + seconds, 0 if counts else 1, claim.item, claim.owner),
            )
        return deferred.rowcount > 0

    def release(self, owner: str) -> None:
        with self._file.transaction() as database:
            database.execute(
                "UPDATE items SET owner = NULL, due = 0, attempts = attempts - 1"
                " WHERE owner = ? AND state = 'waiting'",
                (owner,),
            )
            database.execute("DELETE FROM leader WHERE owner = ?", (owner,))

    def _count(
        self, database: sqlite3.Connection, batch: int, state: Settled, more_bytes: int
    ) -> None:
        """Enter one more settled item; the last one ends its batch."""
        column = "succeeded" if state == "succeeded" else "failed"
        database.execute(
            f"UPDATE batches SET {column} = {column} + 1, dead = dead + ?, bytes = bytes + ?"
            " WHERE number = ?",
            (state == "dead", more_bytes, batch),
        )
        database.execute(
            "UPDATE batches SET ended = ?, ending = 'completed'"
            " WHERE number = ? AND ended IS NULL AND succeeded + failed = total",
            (self._wall_clock(), batch),
        )

    # --- what time brings ------------------------------------------------------------------------

    def tend(self) -> None:
        now = self._wall_clock()
        with self._file.transaction() as database:
            late = database.execute(
                "SELECT number FROM batches WHERE ended IS NULL AND expires <= ?",
                (now,),
            ).fetchall()
            for (number,) in late:
                self._end(database, number, "expired")
            self._bury_lost(database)
            old = database.execute(
                "SELECT number FROM batches WHERE ended <= ? LIMIT ?",
                (now - self._limits.retention_seconds, PRUNED_AT_ONCE),
            ).fetchall()
            database.executemany("DELETE FROM batches WHERE number = ?", old)

    def _bury_lost(self, database: sqlite3.Connection) -> None:
        """Items whose last attempt's lease lapsed: their worker died each time, or was cut off."""
        lost = database.execute(
            "UPDATE items SET state = 'dead', owner = NULL WHERE state = 'waiting' AND due <= ?"
            " AND attempts >= ? AND batch IN (SELECT number FROM batches WHERE ended IS NULL)"
            " RETURNING batch",
            (self._clock(), self._limits.attempts),
        ).fetchall()
        for (batch,) in lost:
            self._count(database, batch, "dead", 0)

    def _end(self, database: sqlite3.Connection, number: int, ending: Ending) -> None:
        """End a batch before all its items are done."""
        (freed,) = database.execute(
            "SELECT COALESCE(SUM(length(payload)), 0) FROM items"
            " WHERE batch = ? AND state = 'waiting'",
            (number,),
        ).fetchone()
        database.execute(
            "UPDATE items SET state = ?, owner = NULL, payload = x''"
            " WHERE batch = ? AND state = 'waiting'",
            (ending, number),
        )
        database.execute(
            "UPDATE batches SET ended = ?, ending = ?, bytes = bytes - ? WHERE number = ?",
            (self._wall_clock(), ending, freed, number),
        )

    def has_work(self) -> bool:
        with self._file.reading() as database:
            (found,) = database.execute(
                "SELECT EXISTS (SELECT 1 FROM batches WHERE closed IS NULL)"
            ).fetchone()
        return bool(found)

    def ended(self, limit: int = 10) -> list[BatchRecord]:
        with self._file.reading() as database:
            rows = database.execute(
                f"SELECT {_RECORD} FROM batches WHERE closed IS NULL AND ended IS NOT NULL"
                " ORDER BY number LIMIT ?",
                (limit,),
            ).fetchall()
        return [_record(row) for row in rows]

    def close_batch(self, id: str) -> None:
        with self._file.transaction() as database:
            database.execute(
                "UPDATE batches SET closed = ? WHERE id = ? AND closed IS NULL",
                (self._wall_clock(), id),
            )


def _one(database: sqlite3.Connection, condition: str, *values: object) -> BatchRecord | None:
    """The one batch of a condition, which is SQL of ours."""
    row = database.execute(f"SELECT {_RECORD} FROM batches WHERE {condition}", values).fetchone()
    return None if row is None else _record(row)


def _record(row: Sequence[Any]) -> BatchRecord:
    return BatchRecord(**dict(zip(BatchRecord.__struct_fields__, row, strict=True)))
