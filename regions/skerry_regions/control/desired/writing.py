"""One write to the store of what is wanted: a transaction, and what it leaves to be read."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import orjson
from msgspec import Struct

from skerry_regions.control.desired.desired import Desired, Record
from skerry_regions.control.desired.resources import NOTHING_RUNS, ResourceKind, Spec

AuditOutcome = Literal["granted", "denied"]
MAX_LOG_ROWS = 100_000  # of events, of answers; the oldest go
MAX_AUDIT_ROWS: dict[AuditOutcome, int] = {"granted": 100_000, "denied": 10_000}
"""Each by itself: whoever is denied a thousand times pushes nothing out that was done."""
TRIM_EVERY = 1000  # rows


class IdempotentAnswer(Struct, frozen=True):
    """What was made for an idempotency key."""

    request: str  # digest of the request
    kind: str
    id: str
    spec: bytes
    revision: int
    at: float


def as_new(spec: Struct) -> dict[str, Any]:
    """Return the changes of a resource that there was not, or that was on its way out."""
    return {name: [None, value] for name, value in msgspec.to_builtins(spec).items()}


def as_gone(spec: Struct) -> dict[str, Any]:
    """Return the changes of a resource that goes."""
    return {name: [value, None] for name, value in msgspec.to_builtins(spec).items()}


class Writing:
    """What may be done in one transaction. `desired` is the picture before it."""

    def __init__(self, database: sqlite3.Connection, desired: Desired, now: float) -> None:
        self._database = database
        self._revision = 0  # of this transaction, once it has changed something
        self.desired = desired
        self.now = now

    def put(self, kind: ResourceKind, id: str, spec: Spec, *, revives: bool = False) -> Record:
        """Add a resource, or change its spec; `revives`: one that was to go stays."""
        before = self.desired.get(kind, id)
        created_at = before.created_at if before is not None else self.now
        revision = self._next_revision()
        self._database.execute(
            "INSERT INTO resources VALUES (?, ?, ?, ?, ?, ?, 0) ON CONFLICT (kind, id) DO UPDATE"
            " SET spec = excluded.spec, revision = excluded.revision,"
            " updated_at = excluded.updated_at, deleting = deleting AND NOT ?",
            (kind.name, id, msgspec.json.encode(spec), revision, created_at, self.now, revives),
        )
        return Record(
            kind=kind, id=id, spec=spec, revision=revision, created_at=created_at,
            updated_at=self.now, deleting=before is not None and before.deleting and not revives,
        )  # fmt: skip

    def mark_deleting(self, record: Record) -> int:
        """Mark it to go, once all of it has drained; one of a kind of which nothing runs goes at
        once. Return the new revision."""
        revision = self._next_revision()
        self._database.execute(
            "UPDATE resources SET deleting = 1, revision = ?, updated_at = ?"
            " WHERE kind = ? AND id = ?",
            (revision, self.now, record.kind.name, record.id),
        )
        if record.kind in NOTHING_RUNS:
            self.remove(record.kind, record.id)
        return revision

    def remove(self, kind: ResourceKind, id: str) -> None:
        """Remove it, and what was decided about it."""
        self._next_revision()
        for table in ("resources", "decisions"):
            self._database.execute(
                f"DELETE FROM {table} WHERE kind = ? AND id = ?", (kind.name, id)
            )

    def decide(self, kind: ResourceKind, id: str, name: str, value: Any) -> None:
        """Note what the control plane settled itself about a resource."""
        self._database.execute(
            "INSERT OR REPLACE INTO decisions VALUES (?, ?, ?, ?)",
            (kind.name, id, name, orjson.dumps(value).decode()),
        )

    def undecide(self, kind: ResourceKind, id: str, name: str) -> None:
        """Forget a decision."""
        self._database.execute(
            "DELETE FROM decisions WHERE kind = ? AND id = ? AND name = ?", (kind.name, id, name)
        )

    def audit(
        self, actor: str, action: str, kind: ResourceKind | str, id: str, revision: int,
        changes: Mapping[str, Any], *, outcome: AuditOutcome = "granted",
    ) -> None:  # fmt: skip
        """Write a line of the audit. `kind` is that of a resource, or what else was changed is
        called."""
        name = kind if isinstance(kind, str) else kind.name
        cursor = self._database.execute(
            "INSERT INTO audit (at, actor, action, kind, id, revision, changes, outcome)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (self.now, actor, action, name, id, revision, orjson.dumps(changes).decode(), outcome),
        )
        if cursor.lastrowid and cursor.lastrowid % TRIM_EVERY == 0:
            for each, most in MAX_AUDIT_ROWS.items():
                self._database.execute(
                    "DELETE FROM audit WHERE outcome = ?1 AND sequence <= (SELECT sequence FROM"
                    " audit WHERE outcome = ?1 ORDER BY sequence DESC LIMIT 1 OFFSET ?2)",
                    (each, most),
                )

    def event(self, kind: ResourceKind, id: str, type: str, reason: str, message: str) -> None:
        cursor = self._database.execute(
            "INSERT INTO events (at, kind, id, type, reason, message) VALUES (?, ?, ?, ?, ?, ?)",
            (self.now, kind.name, id, type, reason, message),
        )
        self._trim("events", cursor.lastrowid)

    def answered(self, key: str, *, keep_seconds: float) -> IdempotentAnswer | None:
        """Return what was made for a key within so long."""
        row = self._database.execute(
            "SELECT request, kind, id, spec, revision, at FROM answers WHERE key = ? AND at >= ?",
            (key, self.now - keep_seconds),
        ).fetchone()
        return None if row is None else IdempotentAnswer(*row)

    def answer(self, key: str, request: str, record: Record, *, keep_seconds: float) -> None:
        """Remember what was made for a key; forget what is older than `keep_seconds`."""
        self._database.execute("DELETE FROM answers WHERE at < ?", (self.now - keep_seconds,))
        cursor = self._database.execute(
            "INSERT OR REPLACE INTO answers (key, request, kind, id, spec, revision, at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                key, request, record.kind.name, record.id, msgspec.json.encode(record.spec),
                record.revision, self.now,
            ),
        )  # fmt: skip
        self._trim("answers", cursor.lastrowid)

    def forget_answer(self, key: str) -> None:
        """Forget what was made for a key."""
        self._database.execute("DELETE FROM answers WHERE key = ?", (key,))

    def execute(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        """Execute a statement for tables of other modules; return its rows."""
        return self._database.execute(statement, values).fetchall()

    def next_term(self, above: int) -> int:
        """Return the term of a control plane that begins: above all before, and `above`."""
        ((term,),) = self.execute(
            "INSERT INTO counters VALUES ('term', ?1 + 1)"
            " ON CONFLICT (name) DO UPDATE SET value = max(value, ?1) + 1 RETURNING value",
            (above,),
        )
        return int(term)

    def _next_revision(self) -> int:
        """Return the transaction's: all that it changes is one revision."""
        if not self._revision:
            (self._revision,) = self._database.execute(
                "UPDATE counters SET value = value + 1 WHERE name = 'revision' RETURNING value"
            ).fetchone()
        return self._revision

    def _trim(self, table: str, sequence: int | None) -> None:
        if sequence and sequence % TRIM_EVERY == 0:
            self._database.execute(
                f"DELETE FROM {table} WHERE sequence <= ?", (sequence - MAX_LOG_ROWS,)
            )
