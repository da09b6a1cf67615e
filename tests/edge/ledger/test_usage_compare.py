"""What a token costs two ways: by nodes, time and price, for the same load."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry_edge.ledger.usage_compare import Run, differences, run_of
from skerry_edge.ledger.usage_journal import UsageJournal
from skerry_edge.ledger.usage_report import journals
from skerry_edge.ledger.usage_tables import Amount
from skerry_regions.models.catalog import Price


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def run(tmp_path: Path, name: str, *, nodes: int, seconds: float, outputs: list[int]) -> Run:
    clock = Time()
    journal = UsageJournal(tmp_path / name / "usage.db", edge="e", clock=clock)
    entries = [
        journal.admit(
            f"r{number}", tenant="t", token="k", model="m", prompt_tokens=100, price=Price()
        )
        for number in range(len(outputs))
    ]
    clock.now += seconds
    for entry, output in zip(entries, outputs, strict=True):
        amount = Amount(prompt_tokens=100, output_tokens=output, decode_seconds=1.0)
        entry.settle("completed" if output else "cancelled", amount)
    journal.close()
    with journals([journal.path]) as database:
        return run_of(database, name, nodes=nodes, node_hour=3.6, since=0.0)


def test_a_token_costs_its_share_of_the_nodes_time(tmp_path: Path) -> None:
    split = run(tmp_path, "split", nodes=2, seconds=10.0, outputs=[50, 50])
    hybrid = run(tmp_path, "hybrid", nodes=2, seconds=20.0, outputs=[50, 50])
    assert (split.node_seconds, split.dollars) == (20.0, pytest.approx(0.02))
    assert split.per_million_output == pytest.approx(200.0)
    assert split.per_million_tokens == pytest.approx(0.02 / 300 * 1e6)
    assert hybrid.per_million_output == pytest.approx(400.0)
    assert "decode 10%" in split.described()
    assert differences(split, hybrid) == []


def test_loads_that_differ_are_told(tmp_path: Path) -> None:
    one = run(tmp_path, "one", nodes=1, seconds=10.0, outputs=[50, 50])
    other = run(tmp_path, "other", nodes=1, seconds=10.0, outputs=[50, 40, 0])
    assert differences(one, other) == [
        "requests: 2 against 3",
        "prompt tokens: 200 against 300",
        "output tokens: 100 against 90",
        "other: 1 unfinished",
    ]


def test_nothing_has_no_price(tmp_path: Path) -> None:
    nothing = run(tmp_path, "nothing", nodes=1, seconds=1.0, outputs=[])
    assert (nothing.requests, nothing.per_million_output, nothing.seconds) == (0, None, 0.0)
    assert "US$ - per million output tokens" in nothing.described()
