"""The schema of the control plane's database, one step after the other.

A step is never changed once released: a newer schema is another step. A database that a newer
version has written is refused, not guessed at.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from skerry_regions.control.desired.terraform_states import FOLDER, save_states

STEPS: tuple[str, ...] = (
    """
    CREATE TABLE resources (
        kind TEXT NOT NULL, id TEXT NOT NULL, spec BLOB NOT NULL, revision INTEGER NOT NULL,
        created_at REAL NOT NULL, updated_at REAL NOT NULL, deleting INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (kind, id)
    ) WITHOUT ROWID;
    CREATE TABLE decisions (  -- what the control plane settled itself, such as a free port
        kind TEXT NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (kind, id, name)
    ) WITHOUT ROWID;
    CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
    INSERT INTO counters VALUES ('revision', 0);
    CREATE TABLE audit (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, actor TEXT NOT NULL,
        action TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, revision INTEGER NOT NULL,
        changes BLOB NOT NULL
    );
    CREATE TABLE events (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, kind TEXT NOT NULL,
        id TEXT NOT NULL, type TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL
    );
    CREATE TABLE answers (  -- to requests with an idempotency key
        sequence INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE,
        request TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, spec BLOB NOT NULL,
        revision INTEGER NOT NULL, at REAL NOT NULL
    );
    CREATE TABLE terraform_states (
        name TEXT PRIMARY KEY, state BLOB, lock BLOB, updated_at REAL NOT NULL
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE join_tokens (
        id TEXT PRIMARY KEY, digest TEXT NOT NULL, spec BLOB NOT NULL, uses INTEGER NOT NULL,
        created_at REAL NOT NULL, expires_at REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE machines (
        id TEXT PRIMARY KEY, kind TEXT NOT NULL, pool TEXT NOT NULL, region TEXT NOT NULL,
        hostname TEXT NOT NULL, version TEXT NOT NULL, token TEXT NOT NULL,
        key_digest TEXT NOT NULL, joined_at REAL NOT NULL, not_after REAL NOT NULL, revoked_at REAL
    ) WITHOUT ROWID;
    CREATE INDEX machines_by_key ON machines (token, key_digest);
    """,
    """
    ALTER TABLE machines ADD COLUMN model TEXT NOT NULL DEFAULT '';  -- what it was told to run
    """,
    """
    DROP TABLE terraform_states;
    """,
    """
    ALTER TABLE audit ADD COLUMN outcome TEXT NOT NULL DEFAULT 'granted';
    CREATE INDEX audit_by_outcome ON audit (outcome, sequence);
    """,
    """
    CREATE TABLE published (  -- API tokens that edges know
        id TEXT PRIMARY KEY, digest TEXT NOT NULL
    ) WITHOUT ROWID;
    INSERT INTO published SELECT known.id, json_extract(digest.value, '$') FROM decisions known
        JOIN decisions digest ON digest.kind = known.kind AND digest.id = known.id
        WHERE known.name = 'published' AND digest.name = 'digest';
    DELETE FROM decisions WHERE name = 'published';
    CREATE TABLE platform (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE log_position (  -- up to where the file is a log's picture, and of which log
        stream TEXT PRIMARY KEY, created TEXT NOT NULL, sequence INTEGER NOT NULL
    ) WITHOUT ROWID;
    """,
)
VERSION = len(STEPS)
FIRST = {4: lambda database, home: save_states(database, home / FOLDER)}
"""What is done before a step, by its number. It may be done twice."""


class NewerSchema(Exception):
    """A later version of Skerry wrote the database; the message says so."""


def migrate(database: sqlite3.Connection, home: Path, *, now: float | None = None) -> int:
    """Bring the schema up to date, whole or not at all; return its version before.

    What the database keeps no more goes to files in `home`. Raises NewerSchema or OSError.
    """
    at = time.time() if now is None else now
    database.execute(
        "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, at REAL NOT NULL)"
    )
    before = version_of(database)
    if before > VERSION:
        raise NewerSchema(
            f"the database has schema {before}, this version of Skerry knows {VERSION}: "
            "update Skerry, or restore a backup"
        )
    for number, step in enumerate(STEPS[before:], start=before + 1):
        if number in FIRST:
            FIRST[number](database, home)
        # executescript commits what is open: the step's transaction is part of the script.
        try:
            database.executescript(
                f"BEGIN IMMEDIATE; {step};"
                f" INSERT INTO schema_version VALUES ({number}, {at!r}); COMMIT;"
            )
        except sqlite3.Error:
            if database.in_transaction:
                database.rollback()
            raise
    return before


def version_of(database: sqlite3.Connection) -> int:
    (version,) = database.execute("SELECT max(version) FROM schema_version").fetchone()
    return int(version or 0)
