"""The router's index is loaded beside an edge's work; without numba the edge prices in Python."""

from __future__ import annotations

import asyncio
import logging
import sys

import pytest
from tests.regions.routing.kernels import CACHE

from skerry_cli.composition.routing.index_loader import IndexLoader

pytestmark = pytest.mark.anyio


async def test_the_router_is_told_once_the_index_is_there() -> None:
    used = asyncio.Event()
    IndexLoader(CACHE)(used.set)
    assert not used.is_set()
    async with asyncio.timeout(250):  # it may have to compile
        await used.wait()


async def test_without_numba_it_says_so_and_uses_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "skerry_cli.composition.routing.kernels", None)
    used = asyncio.Event()
    loader = IndexLoader(CACHE)
    with caplog.at_level(logging.WARNING):
        loader(used.set)
        assert loader._task is not None
        await loader._task
    assert not used.is_set()
    assert "nodes are priced in Python" in caplog.text
