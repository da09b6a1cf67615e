"""An edge with limits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.edge.http.allowing import LIMITS
from tests.edge.support import Deployment, deployed

from skerry_edge.gate.admission import Admission
from skerry_edge.money.sqlite_spending import SqliteSpending


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Deployment]:
    spending = SqliteSpending(tmp_path / "spending.db")
    admission = Admission(spending=spending)
    with deployed(tmp_path, LIMITS, admission=admission) as deployment:
        yield deployment
    asyncio.run(spending.close())
