"""A running DNS server and its zone, which is made anew when what it is made of changes.

topology, files ──▶ ZoneContents ──▶ Responder ──▶ DnsServer
                         │
                         ├─▶ probes ─▶ HealthWatch (which regions are down)
                         └─▶ edges ──▶ RegionWatch (which are busy, and how far from each other)
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from skerry_cli.composition.zone_contents import ZoneContents, make_contents, stamp_of
from skerry_cli.home.dns_signing import keep_signed, load_zone_keys
from skerry_cli.home.parts import CannotStart
from skerry_cli.home.state import Home, secret
from skerry_dns.server.cookies import Cookies
from skerry_dns.server.dns_server import DnsServer
from skerry_dns.server.responder import Responder
from skerry_dns.server.response_rate import ResponseRate
from skerry_dns.watch.health import PROBE_SECONDS, HealthWatch, Probe
from skerry_dns.watch.region_watch import Ask, RegionWatch, Rtts, ask_edge
from skerry_dns.zone.zone import ZoneError
from skerry_regions.address import Address
from skerry_regions.geo.from_topology import public_addresses
from skerry_regions.geo.places import Places
from skerry_regions.process.health import is_healthy
from skerry_regions.topology.spec import EdgeSpec, Topology

if TYPE_CHECKING:
    from skerry_dns.signing.signed_zone import SignedZone

COOKIE_SECRET = 16  # bytes
LOOK_SECONDS = 60.0  # between looks at files
TRANSFER_SECONDS = 86_400.0  # after which secondaries of a signed zone get it anew

logger = logging.getLogger(__name__)


class LiveZone:
    """A zone as it is served now. Lives on one event loop."""

    def __init__(
        self, home: Home, server_id: bytes, clock: Callable[[], float] = time.time
    ) -> None:
        """Nothing is served yet. `clock` gives Unix seconds.

        The cookie secret comes from the platform's, so that servers that share it take each
        other's.
        """
        key = hashlib.blake2b(key=secret(home), person=b"dns cookies", digest_size=COOKIE_SECRET)
        self.responder = Responder(
            [],
            Places((), {}),
            cookies=Cookies(key.digest()),
            rate=ResponseRate(),
            clock=clock,
            server_id=server_id,
        )
        self.server = DnsServer(self.responder)
        self.served: asyncio.Future[ZoneContents] = asyncio.get_running_loop().create_future()
        self._contents: ZoneContents | None = None
        self._home = home
        self._clock = clock
        self._adopting = asyncio.Lock()
        self._is_new = asyncio.Event()  # and secondaries are to be told
        self._health = HealthWatch({}, self._changed)
        self._figures = RegionWatch({}, self._told)

    async def adopt(self, topology: Topology) -> None:
        """Answer from this from now on. Raises `CannotStart` or `ZoneError`, and then nothing has
        changed. What is known of regions that stay is kept."""
        async with self._adopting:
            await self._adopt(topology)

    async def _adopt(self, topology: Topology) -> None:
        making = partial(make_contents, topology, self._home, self._clock(), self._contents)
        self._serve(await asyncio.to_thread(making))

    def _serve(self, contents: ZoneContents) -> None:
        contents.places.state = self.responder.places.state
        self._contents = contents
        signed = {} if contents.signed is None else {contents.zone.origin: contents.signed}
        self.responder.serve([contents.zone], contents.places, signed)
        self._health.watch(_probes(contents.topology))
        self._figures.watch(_asks(contents.topology))
        self.server.transfers = contents.transfers
        if contents.notification is not None:
            self._is_new.set()
        if not self.served.done():
            self.served.set_result(contents)

    async def run(self) -> None:
        """Keep up with the world, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._health.run())
            tasks.create_task(self._figures.run())
            tasks.create_task(keep_signed(self._signed, self._clock))
            tasks.create_task(self._follow_files())
            tasks.create_task(self._notify())

    async def _follow_files(self) -> None:
        """Keys change what they do with time, and by command; country data is renewed."""
        trouble = ""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look_at_files()
                trouble = ""
            except (CannotStart, ZoneError) as error:
                if str(error) != trouble:  # once, not each minute
                    trouble = str(error)
                    logger.warning("the zone stays as it is: %s", trouble)

    async def look_at_files(self) -> None:
        """Adopt what files of the home have become. Raises `CannotStart` or `ZoneError`."""
        async with self._adopting:
            contents = self._contents
            if contents is not None and self._is_outdated(contents):
                await self._adopt(contents.topology)

    def _is_outdated(self, contents: ZoneContents) -> bool:
        """Raises `CannotStart`."""
        now, spec = self._clock(), contents.spec
        is_given_out = contents.signed is not None and contents.transfers is not None
        if is_given_out and now - contents.made_at > TRANSFER_SECONDS:
            return True  # signatures that secondaries have end one day: a new serial brings others
        keys = load_zone_keys(self._home.zone_key(spec.zone), now)
        return stamp_of(spec, self._home, keys) != contents.stamp

    def _signed(self) -> SignedZone | None:
        return None if self._contents is None else self._contents.signed

    async def _notify(self) -> None:
        """Tell secondaries of each new serial; of the last one, where another follows at once."""
        while await self._is_new.wait():
            self._is_new.clear()
            if self._contents is None or self._contents.notification is None:
                continue
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._contents.notification())
                coming = tasks.create_task(self._is_new.wait())
                await asyncio.wait((sending, coming), return_when=asyncio.FIRST_COMPLETED)
                sending.cancel()
                coming.cancel()

    # --- what others tell ------------------------------------------------------------------------

    def _changed(self, down: frozenset[str]) -> None:
        places = self.responder.places
        places.state = replace(places.state, down=down)

    def _told(self, busy: frozenset[str], rtts: Rtts) -> None:
        places = self.responder.places
        places.state = replace(places.state, busy=busy, rtts=rtts)


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
