"""An edge that keeps answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.edge.scripted_region import answer
from tests.edge.support import Deployment, deployed

from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Deployment]:
    """An edge that remembers, whose engine says something else each time."""
    stores = Stores.in_folder(tmp_path / "stores", edge="edge-1")
    limits = Limits(keep_alive_seconds=0.2, request_seconds=5.0, drain_seconds=1)
    with deployed(tmp_path, limits, stores=stores) as deployment:
        region = deployment.region
        region.script = lambda submit: answer(f"answer {len(region.streams)}")
        yield deployment
