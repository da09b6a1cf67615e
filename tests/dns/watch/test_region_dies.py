"""A region dies and comes back: how long clients still go there, by a clock that jumps."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import dns.message
import pytest
from tests.dns.example import CLIENTS, SITES, query, zone
from tests.dns.virtual_time import run

from skerry_dns.server.cookies import Cookies
from skerry_dns.server.responder import Responder
from skerry_dns.server.response_limits import ResponseLimits
from skerry_dns.watch.health import HealthWatch
from skerry_dns.watch.region_watch import RegionWatch
from skerry_dns.zone.place_records import DEFAULT_TTL as TTL
from skerry_regions.geo.places import Places
from skerry_regions.geo.region_report import RegionReport

INTERVAL, FAILURES, SUCCESSES = 1.5, 3, 5  # as docs/dns.md states
BUSY_SECONDS, PROBE_SECONDS = 2.0, INTERVAL
NEAR_FRA = ipaddress.ip_address("198.51.100.7")
REGION_OF = {str(site.addresses[0]): site.region.name for site in SITES}
NOTICE = 6.0  # seconds in which DNS leaves a dead region, as docs/dns.md states
RETURN = SUCCESSES * INTERVAL + 0.1

Alive = Callable[[float], bool]
"""Whether Frankfurt answers at a time."""


@dataclass
class World:
    """A DNS server that watches three regions, one of which is not always there."""

    alive: Alive
    waiting: Callable[[float], float] = lambda now: 0.0  # seconds of work in Frankfurt's queue
    told: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    """When the answer for a client there changed, and to which region."""

    def __post_init__(self) -> None:
        self.places = Places(SITES, CLIENTS)
        self.responder = Responder(
            [zone()], self.places, cookies=Cookies(bytes(16)), limits=ResponseLimits(responses=1e9),
            clock=lambda: asyncio.get_running_loop().time(),
        )  # fmt: skip

    def answer(self) -> str:
        """The region that a client near Frankfurt is sent to now."""
        wire = self.responder.respond(query("ai"), NEAR_FRA, stream=True)
        assert wire is not None
        message = dns.message.from_wire(wire)
        assert message.answer[0].ttl == TTL
        return REGION_OF[sorted(each.to_text() for each in message.answer[0])[0]]

    async def live(self, seconds: float) -> None:
        """Watch, and note every change of the answer."""
        loop = asyncio.get_running_loop()

        async def probe(name: str) -> bool:
            """As a real one: who does not answer costs all the time that it has."""
            if name == "fra" and not self.alive(loop.time()):
                await asyncio.sleep(PROBE_SECONDS)
                return False
            await asyncio.sleep(0.05)
            return True

        async def ask(*, clients: bool = False) -> RegionReport:
            return RegionReport(region="fra", queue_seconds=self.waiting(loop.time()))

        def note() -> None:
            region = self.answer()
            if not self.told or self.told[-1][1] != region:
                self.told.append((loop.time(), region))

        def changed(down: frozenset[str]) -> None:
            self.places.state = replace(self.places.state, down=down)
            note()

        def busy(names: frozenset[str], rtts: object) -> None:
            if names != self.places.state.busy:
                self.places.state = replace(self.places.state, busy=names)
                note()

        health = HealthWatch(
            {name: lambda n=name: probe(n) for name in ("fra", "iad", "nrt")}, changed
        )
        figures = RegionWatch({"fra": [ask]}, busy)
        tasks = [asyncio.create_task(each.run()) for each in (health, figures)]
        note()
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def regions(world: World) -> list[str]:
    return [region for _, region in world.told]


@pytest.mark.parametrize("dies_at", [10.0, 10.4, 10.49, 10.5, 10.51, 11.0, 11.49])
def test_answers_move_in_time_and_back_once(dies_at: float) -> None:
    heals_at = dies_at + 60.0
    world = World(lambda now: not dies_at <= now < heals_at)
    run(world.live(heals_at + 60.0))
    assert regions(world) == ["fra", "iad", "fra"]
    (_, (left, _), (back, _)) = world.told
    assert 0.0 < left - dies_at <= NOTICE
    assert (SUCCESSES - 1) * INTERVAL <= back - heals_at <= RETURN + INTERVAL


def test_a_client_behind_a_cache_has_left_within_36_seconds() -> None:
    """A resolver that asked a moment before the answer moved keeps the old one for its TTL."""
    assert NOTICE + TTL == 36.0
    rng = Random(1)
    for _ in range(20):
        dies_at = 50.0 + rng.random() * INTERVAL
        world = World(lambda now, dies_at=dies_at: now < dies_at)
        run(world.live(dies_at + NOTICE + 1.0))
        (_, (left, region)) = world.told
        assert region == "iad"
        assert left + TTL - dies_at <= 36.0


def test_a_region_that_flaps_stays_away() -> None:
    """It answers for 6 s of every 15 s: for less than it takes to come back."""
    world = World(lambda now: not 20.0 <= now < 200.0 or now % 15.0 < 6.0)
    run(world.live(240.0))
    assert regions(world) == ["fra", "iad", "fra"]
    assert world.told[2][0] >= 200.0


def test_a_lost_probe_now_and_then_moves_nobody() -> None:
    rng = Random(2)
    lost = {round(rng.random() * 300.0 / INTERVAL) for _ in range(30)}
    lost -= {each for each in lost if {each - 1, each - 2} & lost}  # never three in a row
    world = World(lambda now: round(now / INTERVAL) not in lost)
    run(world.live(300.0))
    assert regions(world) == ["fra"]


def test_a_region_under_load_is_left_and_comes_back() -> None:
    world = World(
        lambda now: True, waiting=lambda now: 2 * BUSY_SECONDS if 20.0 <= now < 80.0 else 0.0
    )
    run(world.live(120.0))
    assert regions(world) == ["fra", "iad", "fra"]
    (_, (left, _), (back, _)) = world.told
    assert left - 20.0 <= FAILURES * INTERVAL + 0.2
    assert back - 80.0 <= RETURN
