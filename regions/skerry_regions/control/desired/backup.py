"""Copies of the control plane's database, whole at one moment, and putting one back."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from skerry_regions.control.desired.migrations import VERSION, version_of

SIDE_FILES = ("-wal", "-shm")


class BackupError(Exception):
    """A copy cannot be made or used; the message says why."""


def backup(database: Path, target: Path) -> None:
    """Copy `database`, which may be in use, to a new file. Raises BackupError."""
    if not database.exists():
        raise BackupError(f"there is no {database}")
    if target.exists():
        raise BackupError(f"{target} is there already")
    draft = target.with_name(f".{target.name}.draft")
    try:
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)
        with _opened(database) as source, _opened(draft) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without side files
        check_copy(draft)
        os.replace(draft, target)
    except (OSError, sqlite3.Error) as error:
        raise BackupError(f"{target}: {error}") from None
    finally:
        draft.unlink(missing_ok=True)


def restore(source: Path, database: Path) -> Path | None:
    """Put a copy in place of `database`, which no process may use; return where the former one is
    now.

    Raises BackupError, and changes nothing then.
    """
    draft = database.with_name(f".{database.name}.draft")
    try:
        check_copy(source)
        database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)
        with _opened(source) as copy, _opened(draft) as target:
            copy.backup(target)
        former = None
        if database.exists():
            former = database.with_name(f"{database.name}.replaced")
            with _opened(database) as old:
                old.execute("PRAGMA journal_mode = DELETE")  # everything into the one file
            os.replace(database, former)
            for suffix in SIDE_FILES:
                database.with_name(database.name + suffix).unlink(missing_ok=True)
        os.replace(draft, database)
    except (OSError, sqlite3.Error) as error:
        raise BackupError(f"{source}: {error}") from None
    finally:
        draft.unlink(missing_ok=True)
    return former


def check_copy(path: Path) -> None:
    """Raises BackupError for what is no whole database of ours."""
    if not path.exists():
        raise BackupError(f"there is no {path}")
    with _opened(path) as database:
        (verdict,) = database.execute("PRAGMA integrity_check").fetchone()
        if verdict != "ok":
            raise BackupError(f"{path} is damaged: {verdict}")
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        if not {"schema_version", "resources"} <= tables:
            raise BackupError(f"{path} is no copy of a control plane")
        if (version := version_of(database)) > VERSION:
            raise BackupError(f"{path} has schema {version}, this version knows {VERSION}")


def _opened(path: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(path, isolation_level=None))
