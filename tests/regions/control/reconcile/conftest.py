"""A reconciler in a world without processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.regions.control.reconcile.machines import World
from tests.regions.control.support import MODEL


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    world.make("regions", name="fra", iata="FRA")
    world.make("pools", name="decode", region="fra", role="decode", model=MODEL, replicas=2)
    world.make("edge_nodes", name="edge", region="fra")
    yield world
    world.store.close()
