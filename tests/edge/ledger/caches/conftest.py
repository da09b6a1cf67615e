"""A server for caches, and caches in every place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.edge.ledger.caches.opened_caches import Opened
from tests.edge.ledger.redis_server import RedisServer


@pytest.fixture(scope="module")
def running() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture
def server(running: RedisServer) -> RedisServer:
    running.ask("FLUSHALL")
    return running


@pytest.fixture
def opened(server: RedisServer) -> Iterator[Opened]:
    caches = Opened(server)
    yield caches
    for each in caches.made:
        each.close()
