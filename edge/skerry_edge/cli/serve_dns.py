"""The process behind `skerry dns`, and what `skerry geo explain` says.

topology ─┬─▶ Zone ───────────────────┐
          ├─▶ Places ─────────────────┼─▶ Responder ─▶ DnsServer
          ├─▶ probes ─▶ HealthWatch ──┤ (which regions are down)
          └─▶ edges ──▶ RegionWatch ──┘ (which are busy, and how far from each other)
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import dns.name
import uvloop

from skerry_edge.cli.dns_signing import keep_signed, load_zone_key, sign_zone
from skerry_edge.cli.dns_transfers import load_transfer_key, transfers_of
from skerry_edge.cli.output import note, say
from skerry_edge.cli.parts import CannotStart, read_topology
from skerry_edge.cli.state import Home, secret
from skerry_edge.geo.cookies import Cookies
from skerry_edge.geo.dns_server import DnsServer
from skerry_edge.geo.from_topology import places_of, public_addresses, zone_of
from skerry_edge.geo.health import HealthWatch, Probe
from skerry_edge.geo.networks import Address as IPAddress
from skerry_edge.geo.notify import notify
from skerry_edge.geo.places import Places
from skerry_edge.geo.ranking import seconds_to
from skerry_edge.geo.region_watch import Ask, RegionWatch, Rtts, ask_edge
from skerry_edge.geo.responder import Responder
from skerry_edge.geo.response_rate import ResponseRate
from skerry_edge.geo.transfer import Transfers
from skerry_edge.geo.zone import ZoneError
from skerry_regions.address import Address
from skerry_regions.health import is_healthy
from skerry_regions.startup import stop_on_signals
from skerry_regions.topology import EdgeSpec, Topology

COOKIE_SECRET = 16  # bytes
MAX_SERVER_ID = 64  # bytes


def serve_dns(
    path: Path, home: Home, host: str | None, port: int | None, server_id: str | None = None
) -> None:
    """Answer for the zone of a topology until SIGINT or SIGTERM. Raises `CannotStart`.

    `server_id` tells servers of one zone apart (NSID); this machine's name unless given.
    The cookie secret comes from the platform's, so that servers that share it take each other's.
    """
    topology = read_topology(path)
    spec = topology.dns
    if spec is None:
        raise CannotStart(f"{path}: there is no `dns` section")
    key = hashlib.blake2b(
        key=secret(home), person=b"dns cookies", digest_size=COOKIE_SECRET
    ).digest()
    zone_key = load_zone_key(home.zone_key(spec.zone))
    origin = dns.name.from_text(spec.zone)
    places = _placed(topology, path)
    try:
        further = [] if zone_key is None else zone_key.records(origin)
        zone = zone_of(spec, int(time.time()), further)
    except ZoneError as error:
        raise CannotStart(f"{path}: {error}") from None
    signed = None if zone_key is None else sign_zone(zone, zone_key)
    responder = Responder(
        [zone],
        places,
        cookies=Cookies(key),
        rate=ResponseRate(),
        clock=time.time,
        server_id=(server_id or socket.gethostname()).encode()[:MAX_SERVER_ID],
        signed={} if signed is None else {origin: signed},
    )
    wanted = (host or spec.host, spec.port if port is None else port)
    background: list[Callable[[], Coroutine[None, None, None]]] = []
    if signed is not None:
        background.append(partial(keep_signed, signed))
    transfers = None
    if (transfer_key := load_transfer_key(home.transfer_key(spec.zone))) is not None:
        if signed is not None:
            raise CannotStart("a signed zone is not transferred: run further servers of ours")
        transfers = transfers_of(zone, spec, places, transfer_key)
        targets = [(each.address, each.port) for each in spec.secondaries]
        background.append(partial(notify, zone, transfer_key, targets))
    elif spec.secondaries:
        raise CannotStart(f"{path}: `secondaries` need a key: `skerry dns transfer-key` draws it")
    uvloop.run(_serve(responder, places, topology, transfers, background, *wanted))
    note("Stopped.")


async def _serve(
    responder: Responder,
    places: Places,
    topology: Topology,
    transfers: Transfers | None,
    background: Sequence[Callable[[], Coroutine[None, None, None]]],
    host: str,
    port: int,
) -> None:
    stop = stop_on_signals()
    server = DnsServer(responder, transfers=transfers)
    try:
        taken = await server.listen(host, port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotStart(
            f"cannot listen on {host} port {port}: {reason}. See --host and --port."
        ) from None

    def changed(down: frozenset[str]) -> None:
        places.state = replace(places.state, down=down)

    def told(busy: frozenset[str], rtts: Rtts) -> None:
        places.state = replace(places.state, busy=busy, rtts=rtts)

    watches = HealthWatch(_probes(topology), changed), RegionWatch(_asks(topology), told)
    tasks = [asyncio.create_task(run()) for run in (*(each.run for each in watches), *background)]
    note(f"DNS is ready at {host} port {taken}, UDP and TCP.")
    try:
        await stop.wait()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.close()


def explain(path: Path, address: IPAddress) -> None:
    """Say where an address is and which regions it gets. Raises `CannotStart`."""
    topology = read_topology(path)
    places = _placed(topology, path)
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


def _placed(topology: Topology, path: Path) -> Places:
    places = places_of(topology)
    if not places.regions:
        raise CannotStart(f"{path}: no edge has `addresses`, so there is nowhere to send clients")
    return places


def _probes(topology: Topology) -> dict[str, Probe]:
    """A region is up while any of its edges answers."""

    def probe_of(edges: list[EdgeSpec]) -> Probe:
        async def probe() -> bool:
            answers = [
                is_healthy(Address(host=str(address), port=edge.port), tls=edge.tls is not None)
                for edge in edges
                for address in public_addresses(edge)
            ]
            return any(await asyncio.gather(*answers))

        return probe

    return {name: probe_of(found) for name, found in _edges(topology).items()}


def _asks(topology: Topology) -> dict[str, list[Ask]]:
    """Each edge of a region, at the first of its addresses."""
    return {
        name: [partial(ask_edge, _url(edge)) for edge in found if public_addresses(edge)]
        for name, found in _edges(topology).items()
    }


def _url(edge: EdgeSpec) -> str:
    scheme = "http" if edge.tls is None else "https"
    address = public_addresses(edge)[0]
    return f"{scheme}://{f'[{address}]' if address.version == 6 else address}:{edge.port}"


def _edges(topology: Topology) -> dict[str, list[EdgeSpec]]:
    """Of each region that has some."""
    edges = {
        region.name: [edge for edge in topology.edges if edge.region == region.name]
        for region in topology.regions
    }
    return {name: found for name, found in edges.items() if found}


def _degrees(location: tuple[float, float]) -> str:
    latitude, longitude = location
    return f"{latitude:.1f}, {longitude:.1f}"
