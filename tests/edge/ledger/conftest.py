"""A NATS server, a usage journal, and its clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.edge.ledger.journal_rows import Time
from tests.regions.drivers.nats_server import NatsCluster

from skerry_edge.ledger.usage_journal import UsageJournal


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path_factory.mktemp("nats"), size=1)
    yield cluster
    cluster.stop()


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def journal(tmp_path: Path, clock: Time) -> Iterator[UsageJournal]:
    journal = UsageJournal(tmp_path / "usage.db", edge="edge-1", clock=clock)
    yield journal
    journal.close()
