"""The usage journal where processes die, disks take nothing and rows cannot be written."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.edge.ledger.journal_rows import (
    DAY,
    NOON,
    Time,
    admit,
    admit_chained,
    amount,
    chains,
    flush,
    outcome_of,
    total_of,
)

from skerry_edge.ledger import usage_journal
from skerry_edge.ledger.usage_journal import UsageJournal

DIES = """
import os, signal, sqlite3, sys
from pathlib import Path
from skerry_edge.ledger.usage_journal import Amount, UsageJournal
from skerry_regions.models.catalog import Price

def admit(id):
    price = Price(prompt=1.0, cached=0.25, output=4.0)
    return journal.admit(id, tenant="t", token="k", model="m", prompt_tokens=100, price=price)

journal = UsageJournal(Path(sys.argv[1]), edge="edge-1")
admit("done").settle("completed", Amount(prompt_tokens=100, output_tokens=50))
admit("running").progress = lambda: 7
known = None
while known != (7,):
    journal.written().result(5)
    database = sqlite3.connect(sys.argv[1])
    known = database.execute("SELECT output_tokens FROM usage WHERE id = 'running'").fetchone()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_kill_9_all_is_settled_once_with_what_is_known(
    tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    path = tmp_path / "usage.db"
    killed = subprocess.run(
        [sys.executable, "-c", DIES, str(path)], env=subprocess_env, check=False, timeout=60
    )
    assert killed.returncode == -signal.SIGKILL
    other = UsageJournal(path, edge="edge-2")
    assert outcome_of(other, "running") == ("running", 7)  # another edge's: not for it to settle
    journal = UsageJournal(path, edge="edge-1")
    assert outcome_of(journal, "running") == ("aborted", 7)
    assert outcome_of(journal, "done") == ("completed", 50)
    total = total_of(journal)
    assert (total.requests, total.running, total.aborted) == (2, 0, 1)
    assert total.cost == pytest.approx((100 + 50 * 4 + 100 + 7 * 4) * 1e-6)
    other.close()
    journal.close()


def test_an_edge_that_still_drains_settles_after_its_successor_began(
    journal: UsageJournal, clock: Time
) -> None:
    entry = admit(journal)
    flush(journal)
    successor = UsageJournal(journal.path, edge="edge-1", clock=clock)
    assert outcome_of(successor) == ("aborted", 0)
    entry.settle("completed", amount())
    assert outcome_of(journal) == ("completed", 50)
    successor.close()


def test_what_an_edge_left_that_never_came_back_is_settled_in_time(
    journal: UsageJournal, clock: Time
) -> None:
    admit(journal, "left")
    flush(journal)
    for days, outcome in ((0.9, "running"), (1.1, "aborted")):
        clock.now = NOON + days * DAY
        other = UsageJournal(journal.path, edge="edge-2", clock=clock)
        assert outcome_of(other, "left") == (outcome, 0)
        other.close()


def test_a_disk_that_takes_nothing_fails_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "usage.db").mkdir()
    journal = UsageJournal(tmp_path / "usage.db", edge="e")
    admit(journal).settle("completed", amount())
    assert not flush(journal, 0.05)
    journal.close()
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize(
    ("prompt_tokens", "model"),
    [(math.nan, "m"), (1 << 63, "m"), (1, "\ud800"), (1, object())],
    ids=["null", "overflow", "surrogate", "type"],
)
def test_a_row_that_cannot_be_written_stops_no_other(
    journal: UsageJournal, caplog: pytest.LogCaptureFixture, prompt_tokens: Any, model: Any
) -> None:
    before = admit(journal, "before")
    admit(journal, "bad", prompt_tokens=prompt_tokens, model=model)
    after = admit(journal, "after")
    before.settle("completed", amount())
    assert flush(journal)
    after.settle("completed", amount())
    assert total_of(journal).completed == 2
    assert [outcome_of(journal, id)[0] for id in ("before", "after")] == ["completed"] * 2
    assert caplog.text.count("is left out") == 1


def test_progress_that_fails_ends_no_writer(
    journal: UsageJournal, caplog: pytest.LogCaptureFixture
) -> None:
    asked = threading.Event()

    def progress() -> int:
        asked.set()
        raise ZeroDivisionError

    entry = admit(journal)
    entry.progress = progress
    assert asked.wait(60)
    entry.settle("completed", amount())
    assert outcome_of(journal) == ("completed", 50)
    assert "ZeroDivisionError" in caplog.text


def test_a_file_that_cannot_be_used_for_a_while_loses_nothing(
    tmp_path: Path, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "usage.db").mkdir()
    journal = UsageJournal(tmp_path / "usage.db", edge="edge-1", clock=clock)
    admit(journal).settle("completed", amount())
    assert not flush(journal, 0.1)
    (tmp_path / "usage.db").rmdir()
    assert outcome_of(journal) == ("completed", 50)
    journal.close()
    assert "cannot be written" in caplog.text


def test_prompts_do_not_gather_behind_a_disk_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_journal, "MAX_UNNAMED", 10)
    (tmp_path / "usage.db").mkdir()
    journal = UsageJournal(tmp_path / "usage.db", edge="e")
    for number in range(200):
        admit_chained(journal, f"{number}", lambda: b"8 bytes.")
    (tmp_path / "usage.db").rmdir()
    assert flush(journal, 30)
    journal.close()
    found = chains(journal.path)
    assert len(found) == 200
    assert 5 <= found.count(b"8 bytes.") < 100  # of ten statements, each time it has looked
