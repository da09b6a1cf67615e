"""One edge's spending as a process: clients that spend a cap until it is used up, and a report."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

from skerry.errors import QuotaExceeded, Unavailable
from skerry_edge.money.caps import Budget, Caps
from skerry_edge.money.nats_spending import NatsSpending
from skerry_edge.money.spending import NANO
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


async def spend(url: StateURL, edge: str, cap: int, edges: int) -> dict[str, object]:
    jetstream = JetStream(url, name=edge)
    await jetstream.open((MONEY, GLOBAL))
    spending = NatsSpending(KeyedStream(jetstream, MONEY, GLOBAL), edges=lambda: edges)
    budget = (Budget(TOKEN, Caps(per_day=cap / NANO, per_month=cap / NANO)),)
    waits: list[float] = []
    paid = num_unavailable = 0
    refused_after: float | None = None
    started = time.monotonic()

    async def client(number: int) -> None:
        nonlocal paid, num_unavailable, refused_after
        rng, refusals = random.Random(f"{edge}{number}"), 0
        await asyncio.sleep(THINK_SECONDS * rng.random())
        while refusals < REFUSALS:
            began = time.perf_counter()
            try:
                hold = await spending.reserve(budget, MOST / NANO)
            except QuotaExceeded:
                refused_after = refused_after or time.monotonic() - started
                refusals += 1
                await asyncio.sleep(THINK_SECONDS)
                continue
            except Unavailable:
                num_unavailable += 1
                await asyncio.sleep(THINK_SECONDS)
                continue
            waits.append(time.perf_counter() - began)
            refusals = 0
            await asyncio.sleep(rng.expovariate(1 / THINK_SECONDS))
            cost = rng.randint(LEAST, MOST)
            paid += cost
            spending.settle(hold, cost / NANO)

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    await spending.close()
    await jetstream.close()
    waits.sort()
    return {
        "paid": paid, "requests": len(waits), "unavailable": num_unavailable,
        "refused_after": refused_after,
        "p50_ms": 1e3 * waits[len(waits) // 2], "p99_ms": 1e3 * waits[len(waits) * 99 // 100],
        "max_ms": 1e3 * waits[-1],
    }  # fmt: skip


def main() -> None:
    _, text, edge, cap, edges = sys.argv
    url = StateURL.parse(text)
    assert url is not None
    report = asyncio.run(spend(url, edge, int(cap), int(edges)))
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
