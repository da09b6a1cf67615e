"""What a running DNS server answers from: made of a topology, and made anew when that changes.

topology ─┬─▶ Zone ─▶ SignedZone ─────┐
          ├─▶ Places ─────────────────┼─▶ Responder ─▶ DnsServer
          ├─▶ probes ─▶ HealthWatch ──┤ (which regions are down)
          └─▶ edges ──▶ RegionWatch ──┘ (which are busy, and how far from each other)
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from skerry_edge.cli.dns_signing import keep_signed, load_zone_keys, sign_zone
from skerry_edge.cli.dns_transfers import load_transfer_key, transfers_of
from skerry_edge.cli.geo_install import open_geo_data
from skerry_edge.cli.parts import CannotStart
from skerry_edge.cli.state import Home, secret
from skerry_edge.geo.cookies import Cookies
from skerry_edge.geo.dns_server import DnsServer
from skerry_edge.geo.from_topology import origin_of, places_of, public_addresses, zone_of
from skerry_edge.geo.health import PROBE_SECONDS, HealthWatch, Probe
from skerry_edge.geo.notify import notify
from skerry_edge.geo.places import Places
from skerry_edge.geo.region_watch import Ask, RegionWatch, Rtts, ask_edge
from skerry_edge.geo.responder import Responder
from skerry_edge.geo.response_rate import ResponseRate
from skerry_edge.geo.zone import ZoneError
from skerry_regions.address import Address
from skerry_regions.health import is_healthy
from skerry_regions.topology import EdgeSpec, Topology
from skerry_regions.zone_spec import DnsSpec

if TYPE_CHECKING:
    from skerry_edge.geo.geo_data import GeoData
    from skerry_edge.geo.zone_keys import ZoneKeys

COOKIE_SECRET = 16  # bytes
LOOK_SECONDS = 60.0  # between looks at files
TRANSFER_SECONDS = 86_400.0  # after which secondaries of a signed zone get it anew

logger = logging.getLogger(__name__)


class LiveZone:
    """A zone as it is served now. Lives on one event loop."""

    def __init__(
        self,
        topology: Topology,
        home: Home,
        server_id: bytes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises `CannotStart` or `ZoneError`. `clock` gives Unix seconds.

        The cookie secret comes from the platform's, so that servers that share it take each
        other's.
        """
        self._home = home
        self._clock = clock
        self._serial, self._adopted = 0, 0.0
        self._data: GeoData | None = None
        self._data_stamp: object = None  # of the file that it was read from
        self._is_new = asyncio.Event()  # and secondaries are to be told
        self._notification: Callable[[], Coroutine[None, None, None]] | None = None
        key = hashlib.blake2b(key=secret(home), person=b"dns cookies", digest_size=COOKIE_SECRET)
        self._places = Places((), {})
        self.responder = Responder(
            [],
            self._places,
            cookies=Cookies(key.digest()),
            rate=ResponseRate(),
            clock=clock,
            server_id=server_id,
        )
        self.server = DnsServer(self.responder)
        self._health = HealthWatch({}, self._changed)
        self._figures = RegionWatch({}, self._told)
        self.adopt(topology)

    def adopt(self, topology: Topology) -> None:
        """Answer from this from now on. Raises `CannotStart` or `ZoneError`, and then nothing has
        changed. What is known of regions that stay is kept."""
        spec = spec_of(topology)
        now = self._clock()
        origin = origin_of(spec)
        keys = load_zone_keys(self._home.zone_key(spec.zone), now)
        further = [] if keys is None else keys.records(origin)
        serial = max(int(now), self._serial + 1)
        zone = zone_of(spec, serial, further)
        data, data_stamp = self._data, self._stamp_of_data(spec)
        if data_stamp is None or data_stamp != self._data_stamp:
            data = open_geo_data(self._home, _named_data(spec))
            if data is not None and data.is_old(now):
                logger.warning("%s is older than 60 days", data.path)
        places = places_of(topology, data)
        places.state = self._places.state
        signed = None if keys is None else sign_zone(zone, keys, now)
        transfer_key = load_transfer_key(self._home.transfer_key(spec.zone))
        if transfer_key is None and spec.secondaries:
            raise CannotStart("`secondaries` need a key: `skerry dns transfer-key` draws it")
        transfers = None
        if transfer_key is not None:
            transfers = transfers_of(zone, spec, places, transfer_key, signed, now)

        self._topology, self._serial, self._places, self._adopted = topology, serial, places, now
        self._data, self._data_stamp = data, data_stamp
        self._signed, self._roles = signed, _roles_of(keys)
        self.responder.serve([zone], places, {} if signed is None else {origin: signed})
        self._health.watch(_probes(topology))
        self._figures.watch(_asks(topology))
        self.server.transfers = transfers
        if transfer_key is not None:
            targets = [(each.address, each.port) for each in spec.secondaries]
            self._notification = partial(notify, zone, transfer_key, targets)
            self._is_new.set()

    @property
    def spec(self) -> DnsSpec:
        return spec_of(self._topology)

    async def run(self) -> None:
        """Keep up with the world, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._health.run())
            tasks.create_task(self._figures.run())
            tasks.create_task(keep_signed(lambda: self._signed, self._clock))
            tasks.create_task(self._follow_files())
            tasks.create_task(self._notify())

    async def _follow_files(self) -> None:
        """Keys change what they do with time, and by command; country data is renewed."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                keys = load_zone_keys(self._home.zone_key(self.spec.zone), self._clock())
                is_as_before = _roles_of(keys) == self._roles
                is_as_before &= self._stamp_of_data(self.spec) == self._data_stamp
                if not is_as_before or self._must_transfer_anew():
                    self.adopt(self._topology)
            except (CannotStart, ZoneError) as error:
                logger.warning("the zone stays as it is: %s", error)

    def _must_transfer_anew(self) -> bool:
        """Signatures that secondaries have end one day, and new ones come with a new serial."""
        is_given_out = self._signed is not None and self.server.transfers is not None
        return is_given_out and self._clock() - self._adopted > TRANSFER_SECONDS

    def _stamp_of_data(self, spec: DnsSpec) -> object:
        """Differs when the country data does; None where there is none."""
        path = _named_data(spec) or self._home.geo_data
        try:
            status = path.stat()
        except OSError:
            return None
        return path, status.st_mtime_ns, status.st_ino

    async def _notify(self) -> None:
        """Tell secondaries of each new serial; of the last one, where another follows at once."""
        while await self._is_new.wait():
            self._is_new.clear()
            if self._notification is None:
                continue
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._notification())
                coming = tasks.create_task(self._is_new.wait())
                await asyncio.wait((sending, coming), return_when=asyncio.FIRST_COMPLETED)
                sending.cancel()
                coming.cancel()

    # --- what others tell ------------------------------------------------------------------------

    def _changed(self, down: frozenset[str]) -> None:
        self._places.state = replace(self._places.state, down=down)

    def _told(self, busy: frozenset[str], rtts: Rtts) -> None:
        self._places.state = replace(self._places.state, busy=busy, rtts=rtts)


def _roles_of(keys: ZoneKeys | None) -> object:
    """Differs when the keys do, or what they do."""
    return None if keys is None else (keys.stage, keys.tags)


def _named_data(spec: DnsSpec) -> Path | None:
    return Path(spec.geo) if spec.geo else None


def spec_of(topology: Topology) -> DnsSpec:
    """Raises `CannotStart`."""
    if topology.dns is None:
        raise CannotStart("there is no `dns` section")
    return topology.dns


def _probes(topology: Topology) -> dict[str, Probe]:
    """A region is up while any of its edges answers."""

    def probe_of(edges: list[EdgeSpec]) -> Probe:
        async def probe() -> bool:
            answers = [
                is_healthy(
                    Address(host=str(address), port=edge.port),
                    seconds=PROBE_SECONDS,
                    tls=edge.tls is not None,
                )
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
