"""Stores that edges share, of both drivers, for one suite: files of a home, and NATS servers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from nats.aio.client import Client
from tests.regions.drivers.faults import Fault, FaultPlan
from tests.regions.drivers.nats_server import NatsCluster

from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.specs import MIB, StreamSpec
from skerry_regions.drivers.jetstream.stream import KeyedStream


class Closing(Protocol):
    def close(self) -> None: ...


StoreT = TypeVar("StoreT", bound=Closing)
Open = Callable[[], Awaitable[StoreT]]
"""Gives another edge's view of one store."""


@dataclass(frozen=True, kw_only=True)
class Drivers(Generic[StoreT]):
    """How a store is made by either driver."""

    spec: StreamSpec
    nats: Callable[[KeyedStream], StoreT]
    sqlite: Callable[[Path], StoreT]

    @asynccontextmanager
    async def in_file(self, path: Path) -> AsyncGenerator[Open[StoreT]]:
        with ExitStack() as stack:

            async def open() -> StoreT:
                store = self.sqlite(path)
                stack.callback(store.close)
                return store

            yield open

    @asynccontextmanager
    async def on(
        self, cluster: NatsCluster, *, plan: FaultPlan | None = None, max_age: float | None = None
    ) -> AsyncGenerator[Open[StoreT]]:
        """In a zone of its own. `plan` hits the first edge."""
        zone = secrets.token_hex(4)
        spec = replace(self.spec, max_bytes=64 * MIB)
        if max_age is not None:
            spec = replace(spec, max_age_seconds=max_age)
        async with AsyncExitStack() as stack:
            is_first = True

            async def open() -> StoreT:
                nonlocal is_first
                make = plan.client if plan is not None and is_first else Client
                jetstream, is_first = JetStream(cluster.state, make_client=make), False
                stack.push_async_callback(jetstream.close)
                await jetstream.open((spec, zone))
                async with asyncio.timeout(30):  # servers of a cluster find each other first
                    while jetstream.problem:  # noqa: ASYNC110  (servers')
                        await asyncio.sleep(0.05)
                return self.nats(KeyedStream(jetstream, spec, zone))

            yield open


def hit_everywhere(
    drivers: Drivers[StoreT],
    cluster: NatsCluster,
    fault: Fault,
    case: Callable[[Open[StoreT], FaultPlan], Awaitable[None]],
) -> int:
    """Run a case with a fault at its first request, at its second, and so on; how many it has."""

    async def run(at: int) -> bool:
        plan = FaultPlan(fault, at, cluster)
        async with drivers.on(cluster, plan=plan) as open:
            await case(open, plan)
        return plan.was_hit

    at = 0
    while asyncio.run(run(at)):
        at += 1
    return at
