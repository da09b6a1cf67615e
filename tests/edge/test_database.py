"""SQLite files off the event loop: bounded, and safe to let go of at any time."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from skerry.errors import Unavailable
from skerry_edge.database import DatabaseThread


def opened(path: Path, max_waiting: int = 2) -> DatabaseThread:
    schema = "CREATE TABLE IF NOT EXISTS numbers (number INTEGER)"
    return DatabaseThread(path / "some.db", (schema,), name="test", max_waiting=max_waiting)


def insert(database: sqlite3.Connection) -> None:
    database.execute("INSERT INTO numbers VALUES (1)")


def count(database: sqlite3.Connection) -> int:
    return int(database.execute("SELECT COUNT(*) FROM numbers").fetchone()[0])


def test_each_work_is_a_transaction(tmp_path: Path) -> None:
    thread = opened(tmp_path)

    def fails(database: sqlite3.Connection) -> None:
        insert(database)
        raise OSError("disk")

    thread.write(insert).result()
    with pytest.raises(Unavailable, match=r"some\.db cannot be used now") as failed:
        thread.write(fails).result()
    assert str(failed.value.__cause__) == "disk"
    assert thread.read(count).result() == 1
    thread.close()


def test_what_waits_is_bounded_and_what_is_cancelled_makes_room(tmp_path: Path) -> None:
    thread, gate = opened(tmp_path), threading.Event()
    blocked = thread.write(lambda database: gate.wait(10))
    for _ in range(5):
        assert thread.write(insert).cancel()
    waiting = thread.write(insert)
    with pytest.raises(Unavailable, match="too much"):
        thread.write(insert).result()
    gate.set()
    assert blocked.result()
    waiting.result()
    assert thread.read(count).result() == 1
    thread.close()


def test_after_its_end_it_takes_nothing(tmp_path: Path) -> None:
    thread = opened(tmp_path)
    thread.write(insert)
    thread.close()
    thread.close()
    for _ in range(3):
        with pytest.raises(Unavailable, match="closed"):
            thread.write(insert).result()
    again = opened(tmp_path)
    assert again.read(count).result() == 1
    again.close()
