"""A server for caches, and caches in every place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.edge.ledger.caches.opened_caches import PATIENT, Opened
from tests.edge.ledger.redis_server import RedisServer

from skerry_edge.shared import redis_answers


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
def opened(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    for bound in ("SERVER_SECONDS", "CONNECT_SECONDS"):
        monkeypatch.setattr(redis_answers, bound, PATIENT)
    caches = Opened(server)
    yield caches
    for each in caches.made:
        each.close()
