"""A control plane's API with two regions and an edge in each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.regions.control.support import Api


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """With two regions and an edge in each."""
    api = Api(tmp_path)
    await api.make("regions", name="fra", iata="FRA", residency="eu")
    await api.make("regions", name="iad", iata="IAD", residency="us")
    await api.make("edge_nodes", name="a", region="fra", addresses=["192.0.2.1", "2001:db8::1"])
    await api.make("edge_nodes", name="b", region="iad", addresses=["192.0.2.2"], port=8787)
    yield api
    await api.close()
