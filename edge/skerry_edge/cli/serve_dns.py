"""The process behind `skerry dns`, and what `skerry geo explain` says.

topology ─┬─▶ Zone ───────────────────┐
          ├─▶ Places ─────────────────┼─▶ Responder ─▶ DnsServer
          └─▶ probes ─▶ HealthWatch ──┘ (which regions are down)
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from pathlib import Path

import uvloop

from skerry_edge.cli.output import note, say
from skerry_edge.cli.parts import CannotStart, read_topology
from skerry_edge.cli.state import Home, secret
from skerry_edge.geo.cookies import Cookies
from skerry_edge.geo.dns_server import DnsServer
from skerry_edge.geo.from_topology import places_of, public_addresses, zone_of
from skerry_edge.geo.health import HealthWatch, Probe
from skerry_edge.geo.networks import Address as IPAddress
from skerry_edge.geo.places import Places, State
from skerry_edge.geo.ranking import seconds_to
from skerry_edge.geo.responder import Responder
from skerry_edge.geo.response_rate import ResponseRate
from skerry_edge.geo.zone import ZoneError
from skerry_regions.address import Address
from skerry_regions.health import is_healthy
from skerry_regions.startup import stop_on_signals
from skerry_regions.topology import EdgeSpec, Topology

COOKIE_SECRET = 16  # bytes


def serve_dns(path: Path, home: Home, host: str | None, port: int | None) -> None:
    """Answer for the zone of a topology until SIGINT or SIGTERM. Raises `CannotStart`.

    The cookie secret comes from the platform's, so that servers that share it take each other's.
    """
    topology = read_topology(path)
    spec = topology.dns
    if spec is None:
        raise CannotStart(f"{path}: there is no `dns` section")
    key = hashlib.blake2b(
        key=secret(home), person=b"dns cookies", digest_size=COOKIE_SECRET
    ).digest()
    try:
        places = places_of(topology)
        zone = zone_of(spec, int(time.time()))
    except ZoneError as error:
        raise CannotStart(f"{path}: {error}") from None
    responder = Responder(
        [zone], places, cookies=Cookies(key), rate=ResponseRate(), clock=time.time
    )
    wanted = (host or spec.host, spec.port if port is None else port)
    uvloop.run(_serve(responder, places, topology, *wanted))
    note("Stopped.")


async def _serve(
    responder: Responder, places: Places, topology: Topology, host: str, port: int
) -> None:
    stop = stop_on_signals()
    server = DnsServer(responder)
    try:
        taken = await server.listen(host, port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotStart(
            f"cannot listen on {host} port {port}: {reason}. See --host and --port."
        ) from None

    def changed(down: frozenset[str]) -> None:
        places.state = State(down=down)

    watch = asyncio.create_task(HealthWatch(_probes(topology), changed).run())
    note(f"DNS is ready at {host} port {taken}, UDP and TCP.")
    try:
        await stop.wait()
    finally:
        watch.cancel()
        await server.close()


def explain(path: Path, address: IPAddress) -> None:
    """Say where an address is and which regions it gets. Raises `CannotStart`."""
    topology = read_topology(path)
    try:
        places = places_of(topology)
    except ZoneError as error:
        raise CannotStart(f"{path}: {error}") from None
    client, scope = places.locate(address)
    where = "nobody knows where" if client.location is None else f"near {_degrees(client.location)}"
    bound = f", bound to {client.zone}" if client.zone else ""
    say(f"{address} is {where}{bound}; true of the /{scope} around it.")
    order = places.order(client)
    for rank, name in enumerate(order, 1):
        seconds = seconds_to(topology.region(name), client)
        reason = (
            "no distance: as the file orders" if math.isinf(seconds) else f"{seconds * 1e3:.0f} ms"
        )
        say(f"{rank}. {name} ({reason})")
    if not order:
        say("No region may serve it.")


def _probes(topology: Topology) -> dict[str, Probe]:
    """A region is up while any of its edges answers."""

    def probe_of(edges: list[EdgeSpec]) -> Probe:
        async def probe() -> bool:
            answers = [
                is_healthy(Address(host=str(address), port=edge.port))
                for edge in edges
                for address in public_addresses(edge)
            ]
            return any(await asyncio.gather(*answers))

        return probe

    edges = {
        region.name: [edge for edge in topology.edges if edge.region == region.name]
        for region in topology.regions
    }
    return {name: probe_of(found) for name, found in edges.items() if found}


def _degrees(location: tuple[float, float]) -> str:
    latitude, longitude = location
    return f"{latitude:.1f}, {longitude:.1f}"
