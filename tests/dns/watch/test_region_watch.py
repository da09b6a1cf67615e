"""Which regions are busy, and how far from each other, as edges report."""

from __future__ import annotations

import asyncio
import ipaddress
from functools import partial

import pytest

from skerry_dns.watch.region_watch import CLIENT_ROUNDS, RegionWatch, Rtts
from skerry_regions.geo.measured_rtt import MIN_SAMPLES
from skerry_regions.geo.region_report import RegionReport
from skerry_regions.geo.whereabouts import ClientRtts

BUSY_SECONDS, FAILURES, SUCCESSES = 2.0, 3, 5


def test_a_region_is_busy_when_all_its_edges_say_so_for_a_while() -> None:
    told: list[tuple[frozenset[str], Rtts]] = []
    says = {"a": 0.0, "b": 0.0}

    async def edge(name: str, *, clients: bool = False) -> RegionReport:
        return RegionReport(
            region="fra", queue_seconds=says[name], rtt_seconds={"iad": 0.08, "unheard": 0.1}
        )

    async def mistaken(*, clients: bool = False) -> RegionReport:
        return RegionReport(region="nrt", queue_seconds=9.0, rtt_seconds={"iad": 9.0})

    async def silent(*, clients: bool = False) -> None:
        return None

    watch = RegionWatch(
        {"fra": [partial(edge, "a"), partial(edge, "b"), mistaken], "iad": [silent]},
        lambda busy, rtts: told.append((busy, rtts)),
    )

    async def busy_after(rounds: int) -> set[str]:
        for _ in range(rounds):
            await watch.round()
        return set(told[-1][0])

    async def main() -> None:
        says["a"] = 2 * BUSY_SECONDS
        assert await busy_after(FAILURES) == set()  # the other edge has no queue
        says["b"] = BUSY_SECONDS
        assert await busy_after(FAILURES - 1) == set()
        assert await busy_after(1) == {"fra"}
        says["b"] = 0.0
        assert await busy_after(SUCCESSES - 1) == {"fra"}
        assert await busy_after(1) == set()
        await busy_after(MIN_SAMPLES)
        assert told[-1][1] == {"fra": {"iad": pytest.approx(0.08)}, "iad": {}}

    asyncio.run(main())


def test_round_trips_to_clients_are_asked_for_now_and_then() -> None:
    asked: list[bool] = []
    told: list[ClientRtts] = []

    async def edge(seconds: float, *, clients: bool = False) -> RegionReport:
        asked.append(clients)
        known = {"198.51.100.0/24": seconds, "no network": 1.0} if clients else {}
        return RegionReport(region="fra", client_rtt_seconds=known)

    watch = RegionWatch(
        {"fra": [partial(edge, 0.03), partial(edge, 0.02)]}, lambda busy, rtts: None, told.append
    )

    async def main() -> None:
        for _ in range(2 * CLIENT_ROUNDS):
            await watch.round()

    asyncio.run(main())
    assert asked.count(True) == 4
    network = ipaddress.ip_network("198.51.100.0/24")
    assert told == [{network: {"fra": 0.02}}] * 2  # of the edge that is nearer
