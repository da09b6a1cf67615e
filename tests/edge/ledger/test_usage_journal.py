"""The usage journal: one row a request, whatever happened to it; and the sums over rows."""

from __future__ import annotations

import contextlib
import math
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skerry_edge.ledger import usage_journal
from skerry_edge.ledger.stores import keeps_chains
from skerry_edge.ledger.usage_journal import UsageEntry, UsageJournal
from skerry_edge.ledger.usage_report import Totals, dimensions_of, journals, since_of, totals
from skerry_edge.ledger.usage_tables import Amount, Outcome
from skerry_regions.models.catalog import Price

PRICE = Price(prompt=1.0, cached=0.25, output=4.0)
NOON = 1_795_262_400.0  # 2026-11-21 12:00 UTC
DAY = 86400.0


class Time:
    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def journal(tmp_path: Path, clock: Time) -> Iterator[UsageJournal]:
    journal = UsageJournal(tmp_path / "usage.db", edge="edge-1", clock=clock)
    yield journal
    journal.close()


def admit(
    journal: UsageJournal,
    id: str = "r",
    *,
    tenant: str = "t",
    token: str = "k",
    model: str = "m",
    prompt_tokens: int = 100,
) -> UsageEntry:
    return journal.admit(
        id, tenant=tenant, token=token, model=model, prompt_tokens=prompt_tokens, price=PRICE
    )


def amount(output_tokens: int = 50, cached_tokens: int = 60) -> Amount:
    return Amount(
        prompt_tokens=100, cached_tokens=cached_tokens, output_tokens=output_tokens,
        queue_seconds=0.5, prefill_seconds=1.0, decode_seconds=2.0,
    )  # fmt: skip


def total_of(journal: UsageJournal) -> Totals:
    assert journal.flush()
    with journals([journal.path]) as database:
        (total,) = totals(database)
    return total


def outcome_of(journal: UsageJournal, id: str = "r") -> tuple[Outcome, int]:
    assert journal.flush()
    with sqlite3.connect(journal.path) as database:
        row = database.execute("SELECT outcome, output_tokens FROM usage WHERE id = ?", (id,))
        outcome, output_tokens = row.fetchone()
    database.close()
    return outcome, output_tokens


def test_a_request_costs_what_its_phases_cost(journal: UsageJournal) -> None:
    admit(journal).settle("completed", amount())
    total = total_of(journal)
    assert (total.requests, total.completed) == (1, 1)
    assert (total.prompt_tokens, total.cached_tokens, total.output_tokens) == (100, 60, 50)
    assert (total.queue_seconds, total.prefill_seconds, total.decode_seconds) == (0.5, 1.0, 2.0)
    costs = (total.prompt_cost, total.cached_cost, total.output_cost)
    assert costs == pytest.approx((40e-6, 15e-6, 200e-6))
    assert total.cost == pytest.approx(255e-6)


def test_a_row_is_there_before_the_request_ends(journal: UsageJournal) -> None:
    admit(journal)
    assert outcome_of(journal) == ("running", 0)


def test_settling_twice_changes_nothing(journal: UsageJournal) -> None:
    entry = admit(journal)
    entry.settle("completed", amount())
    entry.settle("failed", Amount())
    assert outcome_of(journal) == ("completed", 50)


def test_failed_requests_and_cached_answers_cost_nothing(journal: UsageJournal) -> None:
    admit(journal, "a").settle("failed", amount())
    admit(journal, "b", prompt_tokens=0).settle("cached", Amount())
    total = total_of(journal)
    assert (total.failed, total.cached_responses, total.cost) == (1, 1, 0.0)


def test_a_retry_after_the_answer_is_not_counted(journal: UsageJournal) -> None:
    admit(journal).settle("completed", amount())
    admit(journal).settle("completed", amount(cached_tokens=99))
    total = total_of(journal)
    assert (total.requests, total.cached_tokens, total.output_tokens) == (1, 60, 50)


def test_a_retry_that_ends_what_broke_off_is_what_counts(journal: UsageJournal) -> None:
    admit(journal).settle("cancelled", amount(output_tokens=10))
    admit(journal).settle("completed", amount())
    assert outcome_of(journal) == ("completed", 50)
    assert total_of(journal).requests == 1


def test_of_two_that_broke_off_the_one_that_came_further_counts(journal: UsageJournal) -> None:
    admit(journal).settle("cancelled", amount(output_tokens=30))
    admit(journal).settle("cancelled", amount(output_tokens=10))
    assert outcome_of(journal) == ("cancelled", 30)


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
    journal.flush()
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
    journal.flush()
    successor = UsageJournal(journal.path, edge="edge-1", clock=clock)
    assert outcome_of(successor) == ("aborted", 0)
    entry.settle("completed", amount())
    assert outcome_of(journal) == ("completed", 50)
    successor.close()


def test_rows_go_with_age_and_number(tmp_path: Path, clock: Time) -> None:
    path = tmp_path / "usage.db"
    journal = UsageJournal(path, edge="e", clock=clock)
    for number in range(5):
        clock.now = NOON + number * DAY
        admit(journal, f"r{number}").settle("completed", amount())
    journal.close()
    journal = UsageJournal(path, edge="e", clock=clock, keep_seconds=2.5 * DAY, max_rows=2)
    journal.flush()
    with journals([path]) as database:
        kept = [row[0] for row in database.execute("SELECT id FROM usage ORDER BY id")]
    assert kept == ["r3", "r4"]
    journal.close()


def test_what_an_edge_left_that_never_came_back_is_settled_in_time(
    journal: UsageJournal, clock: Time
) -> None:
    admit(journal, "left")
    journal.flush()
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
    assert not journal.flush(0.05)
    journal.close()
    assert "cannot be written" in caplog.text


def test_sums_by_dimension(journal: UsageJournal, clock: Time) -> None:
    for id, tenant, model in (("a", "t", "m"), ("b", "t", "n"), ("c", "u", "m"), ("d", "t", "m")):
        admit(journal, id, tenant=tenant, model=model).settle("completed", amount())
        clock.now += DAY / 2
    journal.flush()
    with journals([journal.path]) as database:
        by_model = totals(database, ("tenant", "model"))
        assert [(each.tenant, each.model, each.requests) for each in by_model] == [
            ("t", "m", 2),
            ("t", "n", 1),
            ("u", "m", 1),
        ]
        days = totals(database, ("day",), tenant="t")
        assert [(each.day, each.output_tokens) for each in days] == [
            ("2026-11-21", 50),
            ("2026-11-22", 50),
            ("2026-11-23", 50),
        ]
        (late,) = totals(database, since=NOON + DAY)
        assert late.requests == 2
        (nothing,) = totals(database, tenant="x")
        assert (nothing.requests, nothing.cost) == (0, 0)


def test_a_request_in_two_journals_counts_once(
    journal: UsageJournal, tmp_path: Path, clock: Time
) -> None:
    elsewhere = UsageJournal(tmp_path / "other" / "usage.db", edge="edge-2", clock=clock)
    admit(journal, "both").settle("cancelled", amount(output_tokens=10))
    admit(elsewhere, "both").settle("completed", amount())
    admit(elsewhere, "one").settle("completed", amount())
    for each in (journal, elsewhere):
        each.flush()
    for order in ([journal.path, elsewhere.path], [elsewhere.path, journal.path]):
        with journals(order) as database:
            (total,) = totals(database)
        assert (total.requests, total.completed, total.output_tokens) == (2, 2, 100)
    elsewhere.close()


def test_times() -> None:
    assert since_of("24h", NOON) == NOON - DAY
    assert since_of("2w", NOON) == NOON - 14 * DAY
    assert since_of("2026-11-21", NOON) == NOON - DAY / 2
    for wrong in ("", "yesterday", "5y", "2026-13-01"):
        with pytest.raises(ValueError, match="neither"):
            since_of(wrong, NOON)


def test_dimensions() -> None:
    assert dimensions_of("") == ()
    assert dimensions_of("tenant, day") == ("tenant", "day")
    for wrong, why in (("prompt", "none of"), ("day,day", "twice")):
        with pytest.raises(ValueError, match=why):
            dimensions_of(wrong)


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
    assert journal.flush()
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
    assert not journal.flush(0.1)
    (tmp_path / "usage.db").rmdir()
    assert outcome_of(journal) == ("completed", 50)
    journal.close()
    assert "cannot be written" in caplog.text


def chains(path: Path) -> list[bytes]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return [chain for (chain,) in database.execute("SELECT chain FROM usage ORDER BY number")]


def admit_chained(journal: UsageJournal, id: str, chain: Callable[[], bytes]) -> UsageEntry:
    return journal.admit(
        id, tenant="t", token="k", model="m", prompt_tokens=64, price=PRICE, chain=chain
    )


def test_a_chain_is_made_on_the_writers_thread_and_costs_no_row(
    journal: UsageJournal, caplog: pytest.LogCaptureFixture
) -> None:
    makers: list[threading.Thread] = []

    def chain() -> bytes:
        makers.append(threading.current_thread())
        return b"8 bytes."

    def none() -> bytes:
        raise OverflowError

    admit_chained(journal, "a", chain).settle("completed", amount())
    admit_chained(journal, "b", none).settle("completed", amount())
    admit(journal, "c").settle("completed", amount())
    assert total_of(journal).completed == 3
    assert chains(journal.path) == [b"8 bytes.", b"", b""]
    assert [maker.name for maker in makers] == ["usage-journal"]
    assert caplog.text.count("is left out") == 1
    admit_chained(journal, "c", lambda: b"a retry.").settle("cancelled", amount())
    assert journal.flush()
    assert outcome_of(journal, "c") == ("completed", 50)
    assert chains(journal.path) == [b"8 bytes.", b"", b""]  # what is complete never changes


def test_prompts_do_not_gather_behind_a_disk_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_journal, "MAX_UNNAMED", 10)
    (tmp_path / "usage.db").mkdir()
    journal = UsageJournal(tmp_path / "usage.db", edge="e")
    for number in range(200):
        admit_chained(journal, f"{number}", lambda: b"8 bytes.")
    (tmp_path / "usage.db").rmdir()
    assert journal.flush(30)
    journal.close()
    found = chains(journal.path)
    assert len(found) == 200
    assert 5 <= found.count(b"8 bytes.") < 100  # of ten statements, each time it has looked


@pytest.mark.parametrize(("given", "keeps"), [("", True), ("1", True), (" 0", False)])
def test_chains_are_kept_unless_the_operator_says_no(given: str, keeps: bool) -> None:
    assert keeps_chains({"SKERRY_USAGE_CHAINS": given}) is keeps


def test_a_setting_of_chains_that_is_neither_is_refused() -> None:
    with pytest.raises(ValueError, match="SKERRY_USAGE_CHAINS must be 0 or 1, not 'off'"):
        keeps_chains({"SKERRY_USAGE_CHAINS": "off"})
