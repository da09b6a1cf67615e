"""Response caches that are open."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections import Counter
from collections.abc import Callable

import pytest
from tests.edge.ledger.redis_server import RedisServer
from tests.edge.ledger.test_response_cache import KEY

from skerry_edge.ledger.response_cache import AnswerCache, StoredAnswer
from skerry_edge.shared.redis_answers import RedisAnswers

SECRET = b"s" * 32
PATIENT = 10.0  # seconds: no test depends on how fast the machine is

if importlib.util.find_spec("redis") is None:
    pytest.skip("redis-py is not installed", allow_module_level=True)


class Opened:
    """Caches that are closed in the end, and how looking ended."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.made: list[AnswerCache] = []
        self.outcomes = Counter[str]()

    def redis(
        self,
        zone: str = "eu",
        secret: bytes = SECRET,
        *,
        max_tenant_bytes: int = 1 << 20,
        max_entries: int = 100,
        find_seconds: float = PATIENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> RedisAnswers:
        def count(outcome: str) -> None:
            self.outcomes[outcome] += 1

        cache = RedisAnswers(
            self.server.url, secret=secret, zone=zone, max_tenant_bytes=max_tenant_bytes,
            max_entries=max_entries, find_seconds=find_seconds, count=count, clock=clock,
        )  # fmt: skip
        self.made.append(cache)
        return cache


async def kept(cache: AnswerCache, tenant: str = "t", key: bytes = KEY) -> StoredAnswer | None:
    """What is found once it was written: that is not waited for."""
    for _ in range(3000):
        if (found := await cache.find(tenant, key)) is not None:
            return found
        await asyncio.sleep(0.005)
    return None
