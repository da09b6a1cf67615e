"""The control plane's database: one SQLite file, one process that writes it.

Reads are answered from an immutable picture in memory, replaced by each write, or from the file as
the last write left it: none waits for one that is under way. Every write is one transaction on disk
before it is seen. Methods block for milliseconds: call them on a thread.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import orjson
from msgspec import Struct

from skerry_regions.control.desired.desired import Desired, Record
from skerry_regions.control.desired.migrations import migrate
from skerry_regions.control.desired.resources import BY_NAME, EDGE_NODE
from skerry_regions.control.desired.writing import AuditOutcome, Writing
from skerry_regions.control.errors import Busy
from skerry_regions.drivers.sqlite_file import write_ahead

BUSY_SECONDS = 5.0
EDGE_PORT = "port"  # name of a decision


class AuditEntry(Struct, frozen=True):
    """A write, done or denied: who did what.

    `changes` has the fields that differ, as [before, after], or why it was denied.
    """

    sequence: int
    at: float  # Unix seconds
    actor: str
    action: str
    kind: str
    id: str
    revision: int
    changes: dict[str, Any]
    outcome: AuditOutcome = "granted"


class EventEntry(Struct, frozen=True):
    """Something that happened to a resource."""

    sequence: int
    at: float  # Unix seconds
    kind: str
    id: str
    type: str  # normal or warning
    reason: str
    message: str


class Store:
    """Safe to use from several threads."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Open and migrate. Raises sqlite3.Error, OSError or NewerSchema."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
        self.path = path
        self.clock = clock
        self._lock = threading.RLock()
        self._database = self._connected()
        self._read_lock = threading.RLock()
        self._reader = self._connected()
        try:
            write_ahead(self._database, BUSY_SECONDS)
            self._database.execute("PRAGMA synchronous = FULL")  # what was answered is kept
            migrate(self._database, path.parent, now=clock())
            self._reader.execute("PRAGMA query_only = ON")
            self._desired = self._read()
        except BaseException:
            self.close()
            raise

    def _connected(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )

    @property
    def desired(self) -> Desired:
        return self._desired

    def close(self) -> None:
        with self._read_lock:
            self._reader.close()
        with self._lock:
            self._database.close()

    @contextmanager
    def writing(self) -> Generator[Writing]:
        """Open one transaction: all of it is kept, or nothing. Raises Busy."""
        with self._transaction():
            yield Writing(self._database, self._desired, self.clock())
            self._keep()

    def _keep(self) -> None:
        """Keep elsewhere, too, what a transaction has written, before it is here. Raises Busy."""

    @contextmanager
    def _transaction(self) -> Generator[None]:
        """Write to the file, one at a time, and have the picture that follows. Raises Busy."""
        if not self._lock.acquire(timeout=BUSY_SECONDS):
            raise Busy("another write is under way for too long")
        try:
            try:
                self._database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                raise Busy(f"the database cannot be written now: {error}") from None
            try:
                yield
                desired = self._read()
                self._database.execute("COMMIT")
            except BaseException:
                self._database.rollback()
                raise
            self._desired = desired
        finally:
            self._lock.release()

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        """Open a connection for what is not in the picture. Only to select from."""
        with self._read_lock:
            yield self._reader

    def select(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Return rows of other modules' tables."""
        with self.reading() as database:
            return database.execute(statement, values).fetchall()

    def audit(self, after: int, limit: int, *, newest: bool = False) -> list[AuditEntry]:
        """Return entries behind `after`, oldest first: the first of them, or the `newest`."""
        order = "DESC" if newest else "ASC"
        rows = self.select(
            "SELECT sequence, at, actor, action, kind, id, revision, changes, outcome FROM audit"
            f" WHERE sequence > ? ORDER BY sequence {order} LIMIT ?",
            (after, limit),
        )
        return [
            AuditEntry(
                sequence, at, actor, action, kind, id, revision, orjson.loads(changes), outcome
            )
            for sequence, at, actor, action, kind, id, revision, changes, outcome in (
                reversed(rows) if newest else rows
            )
        ]

    def events(self, after: int, limit: int, *, kind: str = "", id: str = "") -> list[EventEntry]:
        """Return events behind `after`, oldest first; of one kind, or one resource."""
        rows = self.select(
            "SELECT sequence, at, kind, id, type, reason, message FROM events"
            " WHERE sequence > ? AND ? IN ('', kind) AND ? IN ('', id) ORDER BY sequence LIMIT ?",
            (after, kind, id, limit),
        )
        return [EventEntry(*row) for row in rows]

    def decisions(self, name: str) -> dict[tuple[str, str], Any]:
        """Return decisions of one name, by kind and id."""
        rows = self.select("SELECT kind, id, value FROM decisions WHERE name = ?", (name,))
        return {(kind, id): orjson.loads(value) for kind, id, value in rows}

    def edge_ports(self) -> dict[str, int]:
        """Return the ports that edge nodes were given, by their id."""
        decided = self.decisions(EDGE_PORT).items()
        return {id: int(port) for (kind, id), port in decided if kind == EDGE_NODE.name}

    def published(self) -> dict[str, str]:
        """Return the API tokens that edges know: digests of their secrets, by id."""
        return dict(self.select("SELECT id, digest FROM published"))

    def note_published(self, id: str, digest: str | None) -> None:
        """Note that edges know a token by this digest, or, None, no more. Raises Busy."""
        with self.writing() as writing:
            writing.execute("DELETE FROM published WHERE id = ?", (id,))
            if digest is not None:
                writing.execute("INSERT INTO published VALUES (?, ?)", (id, digest))

    def next_term(self, above: int) -> int:
        """Return the term of a control plane that begins: higher than any before. Raises Busy."""
        with self.writing() as writing:
            return writing.next_term(above)

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
