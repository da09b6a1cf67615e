"""One edge's spending as a process: clients that spend a cap until it is used up, and a report."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from skerry.errors import QuotaExceeded, Unavailable
from skerry_edge.money.caps import Budget, Caps
from skerry_edge.money.nats_spending import NatsSpending
from skerry_edge.money.spending import NANO, Spending
from skerry_edge.money.sqlite_spending import SqliteSpending
from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.jetstream.tables import MONEY
from skerry_regions.state_url import StateURL
from skerry_regions.zones import GLOBAL

TOKEN = "spent-by-many"
CLIENTS = 64
THINK_SECONDS = 0.4
MOST, LEAST = 40_000, 2_000  # nano-dollars: what is set aside, and the least that it costs
REFUSALS = 8  # in a row, after which a client ends
KEPT_CHANGES = 50_000  # of what is committed: the last minutes of one edge


@asynccontextmanager
async def opened(state: str, edge: str, edges: int) -> AsyncGenerator[Spending]:
    """The spending of one of so many edges; `state` names servers, or a file of SQLite."""
    url = StateURL.parse(state) if state.startswith("nats:") else None
    if url is None:
        spending: Spending = SqliteSpending(Path(state))
        yield spending
        await spending.close()
        return
    jetstream = JetStream(url, name=edge)
    await jetstream.open((MONEY, GLOBAL))
    spending = NatsSpending(KeyedStream(jetstream, MONEY, GLOBAL), edges=lambda: edges)
    yield spending
    await spending.close()
    await jetstream.close()


async def spend(spending: Spending, edge: str, cap: int) -> dict[str, object]:
    """Spend until every client was refused so often; times in the report are monotonic."""
    budget = (Budget(TOKEN, Caps(per_day=cap / NANO, per_month=cap / NANO)),)
    waits: list[float] = []
    refused_at: list[float] = []
    committed: deque[tuple[float, int]] = deque(maxlen=KEPT_CHANGES)  # paid, and set aside
    paid = num_held = num_unavailable = 0

    def note() -> None:
        committed.append((time.monotonic(), paid + num_held * MOST))

    async def client(number: int) -> None:
        nonlocal paid, num_held, num_unavailable
        rng, refusals = random.Random(f"{edge}{number}"), 0
        await asyncio.sleep(THINK_SECONDS * rng.random())
        while refusals < REFUSALS:
            began = time.perf_counter()
            try:
                hold = await spending.reserve(budget, MOST / NANO)
            except QuotaExceeded:
                refused_at.append(time.monotonic())
                refusals += 1
                await asyncio.sleep(THINK_SECONDS)
                continue
            except Unavailable:
                num_unavailable += 1
                await asyncio.sleep(THINK_SECONDS)
                continue
            waits.append(time.perf_counter() - began)
            refusals = 0
            num_held += 1
            note()
            await asyncio.sleep(rng.expovariate(1 / THINK_SECONDS))
            cost = rng.randint(LEAST, MOST)
            paid += cost
            num_held -= 1
            note()
            spending.settle(hold, cost / NANO)

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    waits.sort()
    return {
        "edge": edge, "paid": paid, "requests": len(waits), "unavailable": num_unavailable,
        "refused_at": refused_at, "committed": list(committed),
        "p50_ms": 1e3 * waits[len(waits) // 2], "p99_ms": 1e3 * waits[len(waits) * 99 // 100],
        "max_ms": 1e3 * waits[-1],
    }  # fmt: skip


async def run(state: str, edge: str, cap: int, edges: int) -> dict[str, object]:
    async with opened(state, edge, edges) as spending:
        return await spend(spending, edge, cap)


def main() -> None:
    _, state, edge, cap, edges = sys.argv
    sys.stdout.write(json.dumps(asyncio.run(run(state, edge, int(cap), int(edges)))))


if __name__ == "__main__":
    main()
