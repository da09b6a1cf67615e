"""Edges that spend of one account's caps, by one driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from nats.aio.client import Client
from tests.clock import Clock
from tests.regions.drivers.faults import FaultPlan
from tests.regions.drivers.nats_server import NatsCluster

from skerry.errors import Unavailable
from skerry_edge.money.cap_record import CapRecord
from skerry_edge.money.caps import Budget
from skerry_edge.money.nats_spending import NatsSpending
from skerry_edge.money.purse import record_of
from skerry_edge.money.spending import Hold, Spending
from skerry_edge.money.sqlite_spending import SqliteSpending
from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.follower import StreamFollower
from skerry_regions.drivers.jetstream.stream import KeyedStream, Stored
from skerry_regions.drivers.jetstream.tables import MONEY
from skerry_regions.zones import GLOBAL

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC).timestamp()
DAY = 86_400.0
SMALL = 0.000_001  # US$, of one request where many are made


@dataclass
class Platform:
    """Edges that share caps; `join` starts one, `die` ends one as kill -9 does."""

    clock: Clock
    path: Path
    cluster: NatsCluster | None = None
    plan: FaultPlan | None = None
    edges: list[Spending] = field(default_factory=list)
    connections: dict[int, JetStream] = field(default_factory=dict)
    records: list[tuple[str, CapRecord]] = field(default_factory=list)  # with their keys

    @property
    def is_shared(self) -> bool:
        return self.cluster is not None

    async def join(self) -> Spending:
        if self.cluster is None:
            made: Spending = SqliteSpending(self.path / "spending.db", wall_clock=self.clock)
        else:
            make = Client if self.plan is None else self.plan.client
            jetstream = JetStream(self.cluster.state, make_client=make)
            await jetstream.open((MONEY, GLOBAL))
            stream = KeyedStream(jetstream, MONEY, GLOBAL)
            made = NatsSpending(stream, edges=lambda: len(self.edges), wall_clock=self.clock)
            self.connections[id(made)] = jetstream
        self.edges.append(made)
        return made

    async def leave(self, edge: Spending) -> None:
        self.edges.remove(edge)
        await edge.close()
        if (jetstream := self.connections.pop(id(edge), None)) is not None:
            await jetstream.close()

    async def die(self, edge: Spending) -> None:
        """It neither gives anything back nor learns anything more."""
        if isinstance(edge, NatsSpending):
            await self.connections[id(edge)].close()
            edge._purses.clear()
        await self.leave(edge)

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Keep every revision of every record that is made meanwhile."""
        if self.cluster is None:
            yield
            return
        jetstream = JetStream(self.cluster.state)
        await jetstream.open((MONEY, GLOBAL))

        def take(stored: Stored) -> None:
            self.records.append((stored.key, record_of(stored)[0]))

        follower = StreamFollower(KeyedStream(jetstream, MONEY, GLOBAL), take)
        follower.start()
        yield
        await asyncio.sleep(0.1)
        await follower.close()
        await jetstream.close()


async def reserve(
    spending: Spending, budgets: tuple[Budget, ...], dollars: float, patience: float = 20.0
) -> Hold:
    """As a client that comes back when money cannot be counted now."""
    async with asyncio.timeout(patience):
        while True:
            try:
                return await spending.reserve(budgets, dollars)
            except Unavailable:
                await asyncio.sleep(0.05)
