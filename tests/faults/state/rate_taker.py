"""An edge that lets requests in by its part of one rate: a process of `test_shared_rates`.

Prints what it let in and when, by the machine's clock, and how long decisions took.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

from skerry_edge.gate.quotas import Allowance
from skerry_edge.shared.nats_rates import NatsRates
from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.jetstream.tables import RATES
from skerry_regions.state_url import StateURL
from skerry_regions.zones import GLOBAL

CLIENTS = 64
SIZES = (50, 500)  # tokens of a request
BUSY_SECONDS, IDLE_SECONDS = 0.05, 1.0  # between a client's requests, at the busy edge and others


async def take(url: str, number: int, edges: int, rate: float, seconds: float) -> None:
    state = StateURL.parse(url)
    assert state is not None
    jetstream = JetStream(state)
    await jetstream.open((RATES, GLOBAL))
    rates = NatsRates(KeyedStream(jetstream, RATES, GLOBAL))
    use, allowance = rates.use(("tenant", "")), Allowance(tokens_per_minute=rate)
    taken: list[tuple[float, int]] = []
    waits: list[float] = []
    asked, began = 0, time.monotonic()

    async def client(name: int) -> None:
        nonlocal asked
        chance = random.Random(f"{number}.{name}")
        while (passed := time.monotonic() - began) < seconds:
            amount = chance.randint(*SIZES)
            asked += amount
            use.follow(allowance, edges, time.monotonic())
            await rates.ready([use])
            clock, now = time.perf_counter(), time.monotonic()
            is_in = use.refusal(amount, 1, now) is None
            if is_in:
                use.enter(amount, 1, now)
            waits.append(time.perf_counter() - clock)
            if is_in:
                taken.append((now, amount))
                use.leave(0, 1, time.monotonic())
            is_busy = int(edges * passed / seconds) == number
            mean = BUSY_SECONDS if is_busy else IDLE_SECONDS
            await asyncio.sleep(chance.expovariate(1 / mean))

    await asyncio.gather(*(client(name) for name in range(CLIENTS)))
    await rates.close()
    await jetstream.close()
    waits.sort()
    report = {
        "taken": taken,
        "asked": asked,
        "p50_us": 1e6 * waits[len(waits) // 2],
        "p99_us": 1e6 * waits[int(0.99 * len(waits))],
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    url, number, edges, rate, seconds = sys.argv[1:]
    asyncio.run(take(url, int(number), int(edges), float(rate), float(seconds)))
