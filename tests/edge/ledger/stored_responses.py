"""Drivers of stored responses and of idempotency keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.edge.ledger.shared_stores import Drivers, Open
from tests.regions.drivers.nats_server import NatsCluster

from skerry.errors import Unavailable
from skerry.wire import Message
from skerry_edge.ledger.idempotency import IdempotencyKeys, RequestKeys
from skerry_edge.ledger.responses_store import Responses, ResponseStore, StoredResponse
from skerry_edge.shared.nats_keys import NatsKeys
from skerry_edge.shared.nats_responses import NatsResponses
from skerry_regions.drivers.jetstream.tables import IDEMPOTENCY, RESPONSES

A, B = "a" * 32, "b" * 32
TTL = 1  # seconds, of the case that waits for it
TENANT_BYTES = 2 << 20
RESPONSE_DRIVERS = Drivers[Responses](
    spec=RESPONSES,
    nats=lambda stream: NatsResponses(stream, max_tenant_bytes=TENANT_BYTES),
    sqlite=lambda path: ResponseStore(path, max_tenant_bytes=TENANT_BYTES),
)
KEY_DRIVERS = Drivers[RequestKeys](
    spec=IDEMPOTENCY,
    nats=lambda stream: NatsKeys(stream, max_tenant_keys=32),
    sqlite=IdempotencyKeys,
)
SOME_FAULTS = [
    "answer lost",
    pytest.param("connection cut", marks=pytest.mark.slow),
    pytest.param("leader stopped", marks=pytest.mark.slow),
]

Use = Callable[[Open[Responses]], Coroutine[Any, Any, None]]


def stored(text: str = "hi") -> StoredResponse:
    return StoredResponse(msgspec.Raw(b'{"id":"r"}'), [Message("assistant", text)], "eu", ["m"])


LARGE = stored("x" * 700_000)  # in three pieces


@asynccontextmanager
async def opened_keys(
    driver: str, cluster: NatsCluster, folder: Path
) -> AsyncGenerator[Open[RequestKeys]]:
    made = KEY_DRIVERS.in_file(folder / "k.db") if driver == "sqlite" else KEY_DRIVERS.on(cluster)
    async with made as open:
        yield open


async def patient(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """What a client gets who tries again: reads are not repeated by the store."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.05)
