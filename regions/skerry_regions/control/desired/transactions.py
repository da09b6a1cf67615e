"""What a transaction of the store changed, row by row: as a message, and taken in by other stores.

Rows have their columns by name, so that a later schema takes in those of an earlier one: columns
that it added get their defaults, and what it keeps no more is left out.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from skerry_regions.control.desired.migrations import VERSION, NewerSchema

FORMAT = 1
MAX_BYTES = 64 << 20  # of a transaction
TABLES: Mapping[str, tuple[str, ...]] = {
    "resources": ("kind", "id"),
    "decisions": ("kind", "id", "name"),
    "counters": ("name",),
    "audit": ("sequence",),
    "events": ("sequence",),
    "answers": ("sequence",),
    "join_tokens": ("id",),
    "machines": ("id",),
    "platform": ("name",),
    "published": ("id",),
}
"""The tables that all control planes share, with the columns of their keys."""


class ChangedRow(Struct, frozen=True, array_like=True):
    """A row as a transaction left it; None where it removed it."""

    table: str
    key: list[str | int]
    row: dict[str, Any] | None


class Transaction(Struct, frozen=True, array_like=True):
    """One transaction of the control plane that led in `term`."""

    format: int
    schema: int  # of the store that wrote it
    term: int
    rows: list[ChangedRow]
    picture: str = ""  # name of the one that replaces everything; rows come after it


class Unreadable(Exception):
    """A message is no transaction; the message says which, and why."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Transaction).decode


def encoded(transaction: Transaction) -> bytes:
    return zlib.compress(_encode(transaction))


def decoded(data: bytes) -> Transaction:
    """Raises Unreadable, or NewerSchema."""
    try:
        packed = zlib.decompressobj().decompress(data, MAX_BYTES)
        found = _decode(packed)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise Unreadable(str(error)) from None
    if found.format > FORMAT or found.schema > VERSION:
        raise NewerSchema(
            f"a control plane of a later version of Skerry writes the log (schema {found.schema}; "
            f"this one knows {VERSION}): update this one"
        )
    return found


def note_changes(database: sqlite3.Connection) -> None:
    """Have a connection note which rows its transactions change."""
    database.execute("PRAGMA recursive_triggers = ON")  # or REPLACE removes rows unnoticed
    database.execute(
        "CREATE TEMP TABLE touched (name TEXT, key TEXT, PRIMARY KEY (name, key)) WITHOUT ROWID"
    )
    for table, key in TABLES.items():
        for event, row in (("INSERT", "new"), ("UPDATE", "new"), ("DELETE", "old")):
            columns = ", ".join(f"{row}.{column}" for column in key)
            database.execute(
                f"CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON main.{table}"
                f" BEGIN INSERT OR REPLACE INTO touched VALUES ('{table}', json_array({columns}));"
                " END"
            )


def changed_rows(database: sqlite3.Connection) -> list[ChangedRow]:
    """Return what the transaction has changed since the last call."""
    touched = database.execute("SELECT name, key FROM touched").fetchall()
    database.execute("DELETE FROM touched")
    found = []
    for table, text in touched:
        key = json.loads(text)
        cursor = database.execute(f"SELECT * FROM {table} WHERE {_where(table)}", key)
        row = cursor.fetchone()
        names = [column[0] for column in cursor.description]
        found.append(ChangedRow(table, key, row and dict(zip(names, row, strict=True))))
    return found


def take_in(database: sqlite3.Connection, transaction: Transaction) -> None:
    """Change the rows that another store's transaction has changed."""
    rows = [row for row in transaction.rows if row.table in TABLES]  # others are kept no more
    for gone in (row for row in rows if row.row is None):
        database.execute(f"DELETE FROM {gone.table} WHERE {_where(gone.table)}", gone.key)
    for there in (row for row in rows if row.row is not None):
        _put(database, there.table, there.row or {})
    database.execute("DELETE FROM touched")


def replace_all(database: sqlite3.Connection) -> None:
    """Replace all rows that are shared by those of the database that is attached as `picture`.

    Terms go on from the higher one."""
    ((term,),) = database.execute(
        "SELECT max(value) FROM (SELECT value FROM counters WHERE name = 'term' UNION ALL"
        " SELECT value FROM picture.counters WHERE name = 'term' UNION ALL SELECT 0)"
    ).fetchall()
    for table in TABLES:
        columns = ", ".join(_columns(database, table))
        database.execute(f"DELETE FROM main.{table}")
        database.execute(
            f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM picture.{table}"
        )
    database.execute("INSERT OR REPLACE INTO counters VALUES ('term', ?)", (term,))
    database.execute("DELETE FROM touched")


def _put(database: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    names = [name for name in _columns(database, table) if name in row]
    marks = ", ".join("?" * len(names))
    database.execute(
        f"INSERT OR REPLACE INTO {table} ({', '.join(names)}) VALUES ({marks})",
        [row[name] for name in names],
    )


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f"PRAGMA main.table_info({table})")]


def _where(table: str) -> str:
    return " AND ".join(f"{column} = ?" for column in TABLES[table])
