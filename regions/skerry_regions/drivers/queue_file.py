"""The file of a batch queue: its tables, its clocks, and the two ways in which batches end.

Leases and pauses are kept by the machine's boot clock; those of an earlier boot are over. Batches
and results expire in Unix seconds, because that outlives a boot.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from skerry_regions.drivers.sqlite_file import SqliteFile
from skerry_regions.drivers.sqlite_registry import boot_id
from skerry_regions.process.local_launcher import boot_time
from skerry_regions.queue import (
    BatchRecord,
    Ending,
    QueueLimits,
    Settled,
)

SCHEMA = """
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
RECORD = (
    "id, tenant, kind, model, meta, created, expires, started, ended, ending, closed, total,"
    " succeeded, failed, dead, bytes"
)
HELD = "number = ? AND owner = ? AND state = 'waiting'"


class QueueFile:
    """What both sides of a queue stand on."""

    def __init__(
        self,
        path: Path,
        limits: QueueLimits | None = None,
        *,
        clock: Callable[[], float] = boot_time,
        wall_clock: Callable[[], float] = time.time,
        boot: str | None = None,
    ) -> None:
        self._limits = limits or QueueLimits()
        self._clock = clock
        self._wall_clock = wall_clock
        self._boot = boot if boot is not None else boot_id()
        self._file = SqliteFile(path, (SCHEMA,), self._forget_other_boots)

    def close(self) -> None:
        self._file.close()

    def _forget_other_boots(self, database: sqlite3.Connection) -> None:
        known = database.execute("SELECT id FROM boot").fetchone()
        if known == (self._boot,):
            return
        database.execute("INSERT OR REPLACE INTO boot VALUES (1, ?)", (self._boot,))
        database.execute("DELETE FROM leader")
        database.execute("UPDATE items SET due = 0, owner = NULL WHERE state = 'waiting'")

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


def one_record(database: sqlite3.Connection, condition: str, *values: object) -> BatchRecord | None:
    """Return the one batch of a condition, which is SQL of ours."""
    row = database.execute(f"SELECT {RECORD} FROM batches WHERE {condition}", values).fetchone()
    return None if row is None else record_of(row)


def record_of(row: Sequence[Any]) -> BatchRecord:
    return BatchRecord(**dict(zip(BatchRecord.__struct_fields__, row, strict=True)))
