"""The form of a SQLite file, one step after the other; `user_version` counts those it has had.

A step is never changed once released: another form is another step. Files of versions that did not
count say 0, and may have the tables of later steps already: each step leaves alone what is there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

Step = str | Callable[[sqlite3.Connection], None]
"""Statements, or what is done inside the transaction."""
Steps = Sequence[Step]


class NewerFile(sqlite3.Error):
    """A later version of Skerry wrote the file; the message says so."""


def migrate(database: sqlite3.Connection, steps: Steps) -> None:
    """Bring a file up to date, whole or not at all; one that is needs no write.

    Raises NewerFile or another sqlite3.Error.
    """
    if version_of(database) == len(steps):
        return
    with transaction(database):  # another process may do the same
        before = version_of(database)
        if before > len(steps):
            raise NewerFile(
                f"the file has the form {before}, this version of Skerry knows {len(steps)}: "
                "update Skerry"
            )
        for step in steps[before:]:
            if isinstance(step, str):
                for statement in _statements(step):
                    database.execute(statement)
            else:
                step(database)
        database.execute(f"PRAGMA user_version = {len(steps)}")


@contextmanager
def transaction(database: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Generator[None]:
    """Open a transaction, committed at its end, undone by an exception."""
    database.execute(begin)
    try:
        yield
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def version_of(database: sqlite3.Connection) -> int:
    """Return how many steps a file has had."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return int(version)


def added_column(table: str, name: str, declaration: str, *, value: str = "") -> Step:
    """Return a step that adds a column where it is missing, with an SQL `value` for rows there."""

    def add(database: sqlite3.Connection) -> None:
        if name in {row[1] for row in database.execute(f"PRAGMA table_info({table})")}:
            return
        database.execute(f"ALTER TABLE {table} ADD COLUMN {name} {declaration}")
        if value:
            database.execute(f"UPDATE {table} SET {name} = {value}")

    return add


def _statements(script: str) -> Iterator[str]:
    held = ""
    for piece in script.split(";"):
        held += piece + ";"
        if sqlite3.complete_statement(held):
            if held.strip(" \n;"):
                yield held
            held = ""
