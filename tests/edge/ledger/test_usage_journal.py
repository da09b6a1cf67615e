"""The usage journal: one row a request, whatever happened to it; and the sums over rows."""

from __future__ import annotations

import threading
from pathlib import Path

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

from skerry_edge.ledger.stores import keeps_chains
from skerry_edge.ledger.usage_journal import UsageJournal
from skerry_edge.ledger.usage_report import dimensions_of, journals, since_of, totals
from skerry_edge.ledger.usage_tables import Amount


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


def test_rows_go_with_age_and_number(tmp_path: Path, clock: Time) -> None:
    path = tmp_path / "usage.db"
    journal = UsageJournal(path, edge="e", clock=clock)
    for number in range(5):
        clock.now = NOON + number * DAY
        admit(journal, f"r{number}").settle("completed", amount())
    journal.close()
    journal = UsageJournal(path, edge="e", clock=clock, keep_seconds=2.5 * DAY, max_rows=2)
    flush(journal)
    with journals([path]) as database:
        kept = [row[0] for row in database.execute("SELECT id FROM usage ORDER BY id")]
    assert kept == ["r3", "r4"]
    journal.close()


def test_sums_by_dimension(journal: UsageJournal, clock: Time) -> None:
    for id, tenant, model in (("a", "t", "m"), ("b", "t", "n"), ("c", "u", "m"), ("d", "t", "m")):
        admit(journal, id, tenant=tenant, model=model).settle("completed", amount())
        clock.now += DAY / 2
    flush(journal)
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
        flush(each)
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
    assert flush(journal)
    assert outcome_of(journal, "c") == ("completed", 50)
    assert chains(journal.path) == [b"8 bytes.", b"", b""]  # what is complete never changes


@pytest.mark.parametrize(("given", "keeps"), [("", True), ("1", True), (" 0", False)])
def test_chains_are_kept_unless_the_operator_says_no(given: str, keeps: bool) -> None:
    assert keeps_chains({"SKERRY_USAGE_CHAINS": given}) is keeps


def test_a_setting_of_chains_that_is_neither_is_refused() -> None:
    with pytest.raises(ValueError, match="SKERRY_USAGE_CHAINS must be 0 or 1, not 'off'"):
        keeps_chains({"SKERRY_USAGE_CHAINS": "off"})
