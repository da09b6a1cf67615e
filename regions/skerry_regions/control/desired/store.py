"""The control plane's database: one SQLite file, one process that writes it.

Reads are answered from an immutable picture in memory, made anew by each write. Every write is one
transaction on disk before it is seen. Methods block for milliseconds: call them on a thread.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from skerry_regions.control.desired.desired import Desired, Record
from skerry_regions.control.desired.migrations import migrate
from skerry_regions.control.desired.resources import BY_NAME, Kind, Spec
from skerry_regions.control.errors import Busy

BUSY_SECONDS = 5.0
MAX_LOG_ROWS = 100_000  # of the audit log, of events, of answers; the oldest go
TRIM_EVERY = 1000  # rows


class AuditEntry(Struct, frozen=True, kw_only=True):
    """One write: who did what. `changes` has the fields that differ, as [before, after]."""

    sequence: int
    at: float  # Unix seconds
    actor: str
    action: str
    kind: str
    id: str
    revision: int
    changes: dict[str, Any]


class EventEntry(Struct, frozen=True, kw_only=True):
    """Something that happened to a resource."""

    sequence: int
    at: float  # Unix seconds
    kind: str
    id: str
    type: str  # normal or warning
    reason: str
    message: str


class Answered(Struct, frozen=True, kw_only=True):
    """What was made for an idempotency key."""

    request: str  # digest of the request
    kind: str
    id: str
    spec: bytes
    revision: int
    at: float


class Store:
    """Safe to use from several threads."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Open and migrate. Raises sqlite3.Error, OSError or NewerSchema."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
        self.path = path
        self.clock = clock
        self._lock = threading.RLock()
        self._database = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")  # what was answered is kept
            migrate(self._database, now=clock())
            self._desired = self._read()
        except BaseException:
            self._database.close()
            raise

    @property
    def desired(self) -> Desired:
        return self._desired

    def close(self) -> None:
        with self._lock:
            self._database.close()

    @contextmanager
    def writing(self) -> Generator[Writing]:
        """One transaction: all of it is kept, or nothing. Raises Busy."""
        with self._lock:
            try:
                self._database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                raise Busy(f"the database cannot be written now: {error}") from None
            try:
                yield Writing(self._database, self._desired, self.clock())
                desired = self._read()
                self._database.execute("COMMIT")
            except BaseException:
                self._database.rollback()
                raise
            self._desired = desired

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        """For what is not in the picture. Only to select from."""
        with self._lock:
            yield self._database

    def select(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """From tables of other modules; the rows."""
        with self.reading() as database:
            return database.execute(statement, values).fetchall()

    def audit(self, after: int, limit: int) -> list[AuditEntry]:
        """Entries behind `after`, oldest first."""
        with self.reading() as database:
            rows = database.execute(
                "SELECT sequence, at, actor, action, kind, id, revision, changes FROM audit"
                " WHERE sequence > ? ORDER BY sequence LIMIT ?",
                (after, limit),
            ).fetchall()
        return [
            AuditEntry(
                sequence=row[0], at=row[1], actor=row[2], action=row[3], kind=row[4], id=row[5],
                revision=row[6], changes=json.loads(row[7]),
            )
            for row in rows
        ]  # fmt: skip

    def events(self, after: int, limit: int, *, kind: str = "", id: str = "") -> list[EventEntry]:
        """Events behind `after`, oldest first; of one kind, or one resource."""
        with self.reading() as database:
            rows = database.execute(
                "SELECT sequence, at, kind, id, type, reason, message FROM events"
                " WHERE sequence > ? AND ? IN ('', kind) AND ? IN ('', id)"
                " ORDER BY sequence LIMIT ?",
                (after, kind, id, limit),
            ).fetchall()
        return [
            EventEntry(
                sequence=row[0], at=row[1], kind=row[2], id=row[3], type=row[4], reason=row[5],
                message=row[6],
            )
            for row in rows
        ]  # fmt: skip

    def decisions(self, name: str) -> dict[tuple[str, str], Any]:
        """Decisions of one name, by kind and id."""
        with self.reading() as database:
            rows = database.execute(
                "SELECT kind, id, value FROM decisions WHERE name = ?", (name,)
            ).fetchall()
        return {(kind, id): json.loads(value) for kind, id, value in rows}

    def _read(self) -> Desired:
        (revision,) = self._database.execute(
            "SELECT value FROM counters WHERE name = 'revision'"
        ).fetchone()
        rows = self._database.execute(
            "SELECT kind, id, spec, revision, created_at, updated_at, deleting FROM resources"
        )
        records = {}
        for kind_name, id, spec, changed, created_at, updated_at, deleting in rows:
            kind = BY_NAME[kind_name]
            records[kind_name, id] = Record(
                kind=kind,
                id=id,
                spec=msgspec.json.decode(spec, type=kind.spec),
                revision=changed,
                created_at=created_at,
                updated_at=updated_at,
                deleting=bool(deleting),
            )
        return Desired(revision, records)


class Writing:
    """What may be done in one transaction. `desired` is the picture before it."""

    def __init__(self, database: sqlite3.Connection, desired: Desired, now: float) -> None:
        self._database = database
        self.desired = desired
        self.now = now

    def put(self, kind: Kind, id: str, spec: Spec) -> Record:
        """Add a resource, or change its spec."""
        before = self.desired.get(kind, id)
        created_at = before.created_at if before is not None else self.now
        revision = self._next_revision()
        self._database.execute(
            "INSERT INTO resources VALUES (?, ?, ?, ?, ?, ?, 0) ON CONFLICT (kind, id) DO UPDATE"
            " SET spec = excluded.spec, revision = excluded.revision,"
            " updated_at = excluded.updated_at",
            (kind.name, id, msgspec.json.encode(spec), revision, created_at, self.now),
        )
        return Record(
            kind=kind, id=id, spec=spec, revision=revision, created_at=created_at,
            updated_at=self.now, deleting=before is not None and before.deleting,
        )  # fmt: skip

    def mark_deleting(self, record: Record) -> int:
        """It is to go, once all of it has drained; the new revision."""
        revision = self._next_revision()
        self._database.execute(
            "UPDATE resources SET deleting = 1, revision = ?, updated_at = ?"
            " WHERE kind = ? AND id = ?",
            (revision, self.now, record.kind.name, record.id),
        )
        return revision

    def remove(self, kind: Kind, id: str) -> None:
        """It is gone, and what was decided about it."""
        self._next_revision()
        for table in ("resources", "decisions"):
            self._database.execute(
                f"DELETE FROM {table} WHERE kind = ? AND id = ?", (kind.name, id)
            )

    def decide(self, kind: Kind, id: str, name: str, value: Any) -> None:
        """Note what the control plane settled itself about a resource."""
        self._database.execute(
            "INSERT OR REPLACE INTO decisions VALUES (?, ?, ?, ?)",
            (kind.name, id, name, json.dumps(value)),
        )

    def audit(
        self, actor: str, action: str, kind: Kind | str, id: str, revision: int,
        changes: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """`kind` is that of a resource, or what else was changed is called."""
        name = kind if isinstance(kind, str) else kind.name
        cursor = self._database.execute(
            "INSERT INTO audit (at, actor, action, kind, id, revision, changes)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self.now, actor, action, name, id, revision, json.dumps(changes)),
        )
        self._trim("audit", cursor.lastrowid)

    def event(self, kind: Kind, id: str, type: str, reason: str, message: str) -> None:
        cursor = self._database.execute(
            "INSERT INTO events (at, kind, id, type, reason, message) VALUES (?, ?, ?, ?, ?, ?)",
            (self.now, kind.name, id, type, reason, message),
        )
        self._trim("events", cursor.lastrowid)

    def answered(self, key: str, *, keep_seconds: float) -> Answered | None:
        """What was made for a key within so long."""
        row = self._database.execute(
            "SELECT request, kind, id, spec, revision, at FROM answers WHERE key = ? AND at >= ?",
            (key, self.now - keep_seconds),
        ).fetchone()
        if row is None:
            return None
        return Answered(
            request=row[0], kind=row[1], id=row[2], spec=row[3], revision=row[4], at=row[5]
        )

    def answer(self, key: str, request: str, record: Record, *, keep_seconds: float) -> None:
        """Remember what was made for a key; forget what is older than `keep_seconds`."""
        self._database.execute("DELETE FROM answers WHERE at < ?", (self.now - keep_seconds,))
        cursor = self._database.execute(
            "INSERT INTO answers (key, request, kind, id, spec, revision, at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                key, request, record.kind.name, record.id, msgspec.json.encode(record.spec),
                record.revision, self.now,
            ),
        )  # fmt: skip
        self._trim("answers", cursor.lastrowid)

    def execute(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        """For tables of other modules; its rows."""
        return self._database.execute(statement, values).fetchall()

    def _next_revision(self) -> int:
        (revision,) = self._database.execute(
            "UPDATE counters SET value = value + 1 WHERE name = 'revision' RETURNING value"
        ).fetchone()
        return int(revision)

    def _trim(self, table: str, sequence: int | None) -> None:
        if sequence and sequence % TRIM_EVERY == 0:
            self._database.execute(
                f"DELETE FROM {table} WHERE sequence <= ?", (sequence - MAX_LOG_ROWS,)
            )
