"""A lease on a real server: one holds it, by its own clock, and for no longer than it renews it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from tests.regions.control.log.logs import Logs

from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.leader_lease import LeaderLease
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.jetstream.tables import LEASES

SPEC = replace(LEASES, table="test-leases")
Lessee = Callable[..., LeaderLease]


def held(logs: Logs, use: Callable[[Lessee], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        jetstream = JetStream(logs.cluster.state)
        await jetstream.open((SPEC, logs.zone))
        stream = KeyedStream(jetstream, SPEC, logs.zone)
        await use(lambda data, **more: LeaderLease(stream, "one", data, seconds=2, **more))
        await jetstream.close()

    logs.wait(run())


def test_one_leads_until_it_renews_no_more(logs: Logs) -> None:
    async def use(lessee: Lessee) -> None:
        first, second = lessee(b"first"), lessee(b"second")
        assert (first.is_held, await first.holder()) == (False, None)
        assert await first.take()
        assert not await second.take()
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            assert await first.renew()
            assert not await second.take()
            await asyncio.sleep(0.2)
        assert (first.is_held, second.is_held) == (True, False)
        stored = await second.holder()
        assert stored is not None
        assert stored.data == b"first"
        while not await second.take():
            assert time.monotonic() < until + 10
            await asyncio.sleep(0.02)
        assert not first.is_held, "its own time was over before"
        assert not await first.renew()
        assert second.is_held

    held(logs, use)


def test_who_gives_up_leaves_it_to_another_at_once(logs: Logs) -> None:
    async def use(lessee: Lessee) -> None:
        first, second = lessee(b"first"), lessee(b"second")
        assert await first.take()
        await first.give_up()
        assert await second.take()
        await first.give_up()
        assert not await lessee(b"third").take(), "what is another's is not given up"

    held(logs, use)


def test_who_slept_does_not_lead(logs: Logs) -> None:
    async def use(lessee: Lessee) -> None:
        now = [100.0]
        sleeper = lessee(b"sleeper", clock=lambda: now[0])
        assert await sleeper.take()
        now[0] += 2.0
        assert not sleeper.is_held
        await sleeper.give_up()
        assert await sleeper.holder() is not None, "it may be another's by now"

    held(logs, use)
