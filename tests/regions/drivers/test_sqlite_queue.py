"""The SQLite driver of the batch queue."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.regions.drivers.queue_suite import QueueSuite
from tests.regions.drivers.queues import LEASE, LIMITS, batch, claim, items, of

from skerry.errors import Unavailable
from skerry_regions.drivers.sqlite_queue import SqliteQueue
from skerry_regions.queue import Queue


class SqliteStore:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.boot = "boot-1"
        self._now = 1000.0
        self._opened: list[SqliteQueue] = []

    def open(self) -> SqliteQueue:
        clock = lambda: self._now  # noqa: E731
        queue = SqliteQueue(self.path, LIMITS, clock=clock, wall_clock=clock, boot=self.boot)
        self._opened.append(queue)
        return queue

    def pass_time(self, seconds: float) -> None:
        self._now += seconds

    def close(self) -> None:
        for queue in self._opened:
            queue.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "queue.db")
    yield store
    store.close()


class TestSqliteQueue(QueueSuite):
    pass


def test_leases_end_with_the_boot(store: SqliteStore) -> None:
    queue: Queue = store.open()
    queue.submit(batch(), items(1))
    queue.lead("w1", LEASE)
    claim(queue, owner="w1")
    store.boot = "boot-2"
    store.pass_time(-900.0)  # the boot clock begins again
    rebooted = store.open()
    assert rebooted.lead("w2", LEASE)
    assert [each.attempt for each in claim(rebooted, owner="w2")] == [2]


def test_nobody_else_reads_the_file(store: SqliteStore) -> None:
    store.open().has_work()
    assert store.path.stat().st_mode & 0o077 == 0


def test_a_store_that_fails_is_unavailable(store: SqliteStore) -> None:
    store.path.write_bytes(b"this is no database, and long enough to tell" * 100)
    with pytest.raises(Unavailable, match=r"queue\.db"):
        store.open().submit(batch(), items(1))


def test_a_failed_write_leaves_nothing_behind(store: SqliteStore) -> None:
    queue = store.open()
    queue.submit(batch("a"), items(1))
    with pytest.raises(Unavailable):
        queue.submit(batch("a"), items(2))  # the id is taken
    assert of(queue, "a").total == 1
    with sqlite3.connect(store.path) as database:
        assert database.execute("SELECT COUNT(*) FROM items").fetchone() == (1,)
    database.close()
