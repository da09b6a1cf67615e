"""Rows of a usage journal, and their sums."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

from skerry_edge.ledger.usage_journal import UsageEntry, UsageJournal
from skerry_edge.ledger.usage_report import Totals, journals, totals
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


def flush(journal: UsageJournal, seconds: float = 5.0) -> bool:
    """Wait until all entries are on disk. False when it is not by then."""
    try:
        journal.written().result(seconds)
    except TimeoutError:
        return False
    return True


def amount(output_tokens: int = 50, cached_tokens: int = 60) -> Amount:
    return Amount(
        prompt_tokens=100, cached_tokens=cached_tokens, output_tokens=output_tokens,
        queue_seconds=0.5, prefill_seconds=1.0, decode_seconds=2.0,
    )  # fmt: skip


def total_of(journal: UsageJournal) -> Totals:
    assert flush(journal)
    with journals([journal.path]) as database:
        (total,) = totals(database)
    return total


def outcome_of(journal: UsageJournal, id: str = "r") -> tuple[Outcome, int]:
    assert flush(journal)
    with sqlite3.connect(journal.path) as database:
        row = database.execute("SELECT outcome, output_tokens FROM usage WHERE id = ?", (id,))
        outcome, output_tokens = row.fetchone()
    database.close()
    return outcome, output_tokens


def chains(path: Path) -> list[bytes]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return [chain for (chain,) in database.execute("SELECT chain FROM usage ORDER BY number")]


def admit_chained(journal: UsageJournal, id: str, chain: Callable[[], bytes]) -> UsageEntry:
    return journal.admit(
        id, tenant="t", token="k", model="m", prompt_tokens=64, price=PRICE, chain=chain
    )
