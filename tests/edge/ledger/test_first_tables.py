"""Files that the first commit to write each table left are opened, whole, by this version."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.edge.ledger.journal_rows import flush

from skerry.errors import Unavailable
from skerry_edge.ledger.file_store import FileStore
from skerry_edge.ledger.idempotency import IdempotencyKey, IdempotencyKeys
from skerry_edge.ledger.response_cache import ResponseCache
from skerry_edge.ledger.responses_store import ResponseStore
from skerry_edge.ledger.usage_journal import UsageJournal
from skerry_edge.money.caps import Budget, Caps
from skerry_edge.money.spending import periods_at
from skerry_edge.money.sqlite_spending import SqliteSpending
from skerry_regions.drivers.sqlite_queue import SqliteQueue
from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.drivers.sqlite_steps import added_column, migrate, version_of

FOLDER = Path(__file__).with_name("first_tables")
NOW = 1_800_000_000.0


def first(tmp_path: Path, name: str) -> Path:
    """A file as the SQL of `first_tables/` makes it: schema and rows of that commit."""
    path = tmp_path / f"{name}.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript((FOLDER / f"{name}.sql").read_text())
    return path


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        return version_of(database)


def test_spending(tmp_path: Path) -> None:
    path = first(tmp_path, "spent")
    spending = SqliteSpending(path, wall_clock=lambda: NOW)
    assert periods_at(NOW)[0].name == "2027-01-15"
    assert asyncio.run(spending.spent("0123456789abcdef")) == (1.5, 1.5)
    asyncio.run(spending.reserve((Budget("0123456789abcdef", Caps(per_day=2.0)),), 0.5))
    asyncio.run(spending.close())
    assert version(path) == 1


def test_usage(tmp_path: Path) -> None:
    path = first(tmp_path, "usage")
    journal = UsageJournal(path, edge="edge-2", clock=lambda: NOW)
    assert flush(journal, 30)
    journal.close()
    with closing(sqlite3.connect(path)) as database:
        [row] = database.execute("SELECT id, outcome, output_tokens, chain FROM usage").fetchall()
    assert row == ("request-1", "completed", 7, b"")
    assert version(path) == 6


def test_files(tmp_path: Path) -> None:
    path = first(tmp_path, "files")
    store = FileStore(path, wall_clock=lambda: NOW)
    kept = store.get("a" * 32, "file-1")
    assert kept is not None
    assert (kept.filename, kept.size, kept.residency) == ("in.jsonl", 3, None)
    store.close()
    assert version(path) == 2


def test_idempotency(tmp_path: Path) -> None:
    path = first(tmp_path, "keys")
    keys = IdempotencyKeys(path, clock=lambda: NOW)
    claim = keys.claim("a" * 32, IdempotencyKey("k-1", b"digest"), "another-id")
    claimed = asyncio.run(claim)
    assert claimed.first_id == "before-1", "the row of the first request, not another"
    keys.close()
    assert version(path) == 3


@pytest.mark.parametrize(
    ("name", "opened"),
    [
        ("responses", lambda path: ResponseStore(path)),
        ("queue", lambda path: SqliteQueue(path)),
        ("members", lambda path: SqliteRegistry(path)),
        ("answers", lambda path: ResponseCache(path)),
    ],
)
def test_the_others(tmp_path: Path, name: str, opened: Callable[[Path], object]) -> None:
    path = first(tmp_path, name)
    store = opened(path)
    match store:
        case ResponseStore():
            assert asyncio.run(store.get("a" * 32, "none")) is None
        case SqliteQueue():
            kept = store.batch("a" * 32, "batch-1")
            assert kept is not None
            assert (kept.total, kept.waiting) == (1, 1)
        case SqliteRegistry():
            assert store.members() == []
        case ResponseCache():
            assert asyncio.run(store.find("a" * 32, b"another")) is None
        case _:
            raise TypeError
    store.close()
    assert version(path) == 1


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = first(tmp_path, "spent")
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    spending = SqliteSpending(path, wall_clock=lambda: NOW)
    with pytest.raises(Unavailable):
        asyncio.run(spending.spent("0123456789abcdef"))
    asyncio.run(spending.close())
    assert version(path) == 99
    assert path.read_bytes()[100:] == before[100:]


def test_steps_are_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    steps = ("CREATE TABLE a (x); INSERT INTO a VALUES ('a;b')", added_column("a", "y", "TEXT"))
    with pytest.raises(sqlite3.OperationalError):
        migrate(database, (*steps, "CREATE TABLE a (x)"))
    assert (version_of(database), database.execute("PRAGMA table_info(a)").fetchall()) == (0, [])
    for _ in range(2):
        migrate(database, steps)
    assert database.execute("SELECT * FROM a").fetchall() == [("a;b", None)]
    assert version_of(database) == 2
    database.close()
