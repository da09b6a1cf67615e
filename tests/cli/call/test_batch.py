"""`skerry batch` on the queue of a home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Raw

from skerry_cli import main
from skerry_edge.api.batch.wire import Reply, encode_reply
from skerry_regions.drivers.sqlite_queue import SqliteQueue
from skerry_regions.queue import NewBatch, NewItem, Settled


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteQueue]:
    """One batch: a request succeeded, one failed, one is dead, one waits."""
    monkeypatch.setenv("SKERRY_HOME", str(tmp_path))
    queue = SqliteQueue(tmp_path / "queue.db")
    new = NewBatch(id="b1", tenant="t", kind="native", model="m", window_seconds=1000.0)
    queue.submit(new, [NewItem(b"{}", f"r{i}") for i in range(4)])
    states: tuple[Settled, ...] = ("succeeded", "failed", "dead")
    for claim, state in zip(queue.claim("w", frozenset({"m"}), 3), states, strict=True):
        queue.settle(claim, state, encode_reply(Reply(500, "id", Raw(b'{"why": "broken"}'))))
    yield queue
    queue.close()


def test_list(queue: SqliteQueue, capsys: pytest.CaptureFixture[str]) -> None:
    queue.submit(
        NewBatch(id="b2", tenant="t", kind="native", model="m", window_seconds=1.0), [NewItem(b"")]
    )
    assert main(["batch", "list"]) == 0
    [_, newer, older] = capsys.readouterr().out.splitlines()
    assert newer.split() == ["b2", "queued", "1", "0", "0", "0", "m"]
    assert older.split() == ["b1", "running", "4", "1", "2", "1", "m"]
    assert main(["batch", "list", "--dead"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["ID", "b1"]
    assert main(["batch", "list", "--limit", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_show(queue: SqliteQueue, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "show", "b1"]) == 0
    printed = capsys.readouterr().out
    assert "4 requests: 1 succeeded, 2 failed, 1 of these at every attempt, 1 to do" in printed
    assert '  2  r2  dead  HTTP 500: {"why": "broken"}' in printed
    assert "r0" not in printed


def test_retry_and_cancel(queue: SqliteQueue, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "retry", "b1"]) == 0
    assert "1 requests of b1 wait again" in capsys.readouterr().out
    assert main(["batch", "retry", "b1"]) == 1
    assert main(["batch", "cancel", "b1"]) == 0
    record = queue.batch("t", "b1")
    assert record is not None
    assert record.ending == "cancelled"
    assert main(["batch", "cancel", "b1"]) == 1
    assert "has ended already" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["show", "cancel", "retry"])
def test_an_unknown_batch(
    queue: SqliteQueue, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["batch", action, "b9"]) == 1
    assert "no batch b9" in capsys.readouterr().err
