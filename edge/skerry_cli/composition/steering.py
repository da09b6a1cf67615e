"""An edge that sends clients elsewhere, as its topology's `steer` section says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from skerry_cli.home.state import Home
from skerry_edge.gate.steering import Steering
from skerry_regions.node.announcer import Announcer
from skerry_regions.registry import Member
from skerry_regions.topology.spec import Topology


def open_steering(
    topology: Topology | None,
    home: Home,
    *,
    id: str,
    region: str,
    zone: str,
    members: Callable[[], Iterable[Member]],
) -> Steering | None:
    """Return the steering; None without a policy. Raises `CannotStart` for country data that cannot
    be used."""
    if topology is None or topology.steer is None:
        return None
    from skerry_cli.home.geo_sources import open_known_places  # all others need no DNS library
    from skerry_regions.geo.from_topology import places_of

    places = places_of(topology, open_known_places(home, topology), guesses=False)
    return Steering(
        topology.steer, topology, places, id=id, region=region, zone=zone, members=members
    )


def lingering(steering: Steering, announcer: Announcer) -> Callable[[], Awaitable[None]]:
    """Return what an edge does before it stops: announces it to clients and other edges."""

    async def linger() -> None:
        steering.drain()
        announcer.announce_now()
        await asyncio.sleep(steering.policy.drain_seconds)

    return linger
