"""A running DNS server and its zone, which is made again when what it is made of changes.

topology, files ──▶ ZoneContents ──▶ Responder ──▶ DnsServer
                         │
                         ├─▶ probes ─▶ HealthWatch (which regions are down)
                         └─▶ edges ──▶ RegionWatch (which are busy, and how far from each other)
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import dns.name

from skerry_cli.composition.dns.zone_contents import (
    ZoneContents,
    by_measured,
    make_contents,
    stamp_of,
)
from skerry_cli.home.dns.signing import keep_signed, load_zone_keys
from skerry_cli.home.errors import CannotStart
from skerry_cli.home.keys import secret
from skerry_cli.home.state import Home
from skerry_dns.server.cookies import Cookies
from skerry_dns.server.dns_server import DnsServer, FastAnswers
from skerry_dns.server.responder import Responder
from skerry_dns.server.response_limits import ResponseLimits
from skerry_dns.watch.edge_reports import EdgeReports
from skerry_dns.watch.health import HealthWatch, Probe
from skerry_dns.watch.region_watch import AskEdge, RegionWatch, Rtts
from skerry_dns.zone.zone_file import ZoneError
from skerry_regions.address import Address
from skerry_regions.geo.from_topology import public_addresses
from skerry_regions.geo.places import Places
from skerry_regions.geo.whereabouts import ClientRtts
from skerry_regions.process.pages import is_healthy
from skerry_regions.topology.spec import EdgeSpec, Topology
from skerry_regions.topology.zone_spec import AnswerLimits

if TYPE_CHECKING:
    from skerry_dns.signing.signed_zone import SignedZone

COOKIE_SECRET = 16  # bytes
MOVED = 0.05  # share by which a round trip differs when answers are to follow it
LOOK_SECONDS = 60.0  # between looks at files
TRANSFER_SECONDS = 86_400.0  # after which secondaries of a signed zone get it again

logger = logging.getLogger(__name__)


class LiveZone:
    """A zone as it is served now. Lives on one event loop."""

    def __init__(
        self,
        home: Home,
        server_id: bytes,
        token: Callable[[], str],
        clock: Callable[[], float] = time.time,
        fast: Callable[[Responder], FastAnswers | None] = lambda responder: None,
    ) -> None:
        """Nothing is served yet. `token` is for what edges report. `clock` gives Unix seconds.
        `fast` returns the responder's fast path, where there is one.

        The cookie secret comes from the platform's, so that servers that share it take each
        other's.
        """
        key = hashlib.blake2b(key=secret(home), person=b"dns cookies", digest_size=COOKIE_SECRET)
        self.responder = Responder(
            [],
            Places((), {}),
            cookies=Cookies(key.digest()),
            limits=ResponseLimits(),
            clock=clock,
            server_id=server_id,
        )
        self.server = DnsServer(self.responder, fast=fast(self.responder))
        self.served: asyncio.Future[ZoneContents] = asyncio.get_running_loop().create_future()
        self._contents: ZoneContents | None = None
        self._home = home
        self._token = token
        self._tls = ssl.create_default_context()  # trusts SSL_CERT_FILE, else what the system does
        self._clock = clock
        self._adopting = asyncio.Lock()
        self._is_new = asyncio.Event()  # and secondaries are to be notified
        self._health = HealthWatch({}, self._changed)
        self._measured: ClientRtts = {}  # of networks, as edges reported last
        self._has_measured = asyncio.Event()
        self._reports = RegionWatch({}, self._told, self._told_clients)

    async def adopt(self, topology: Topology) -> None:
        """Answer from this from now on. Raises `CannotStart` or `ZoneError`, and then nothing has
        changed. What is known of regions that stay is kept."""
        async with self._adopting:
            await self._adopt(topology)

    async def _adopt(self, topology: Topology) -> None:
        making = partial(make_contents, topology, self._home, self._clock(), self._contents)
        self._serve(await asyncio.to_thread(making))

    def _serve(self, contents: ZoneContents, *, is_new: bool = True) -> None:
        contents.places.state = self.responder.places.state
        limits = contents.spec.limits
        if self._contents is None or self._contents.spec.limits != limits:
            self.responder.limits = _limits(limits)
        self._contents = contents
        signed = {} if contents.signed is None else {contents.zone.origin: contents.signed}
        self.responder.serve([contents.zone], contents.places, signed)
        health = contents.spec.health
        self._health.watch(_probes(contents.topology, health.interval), health)
        self._reports.watch(self._asks(contents), health)
        self.server.transfers = contents.transfers
        if is_new and contents.notification is not None:
            self._is_new.set()
        if not self.served.done():
            self.served.set_result(contents)

    async def run(self) -> None:
        """Keep up with the world, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._health.run())
            tasks.create_task(self._reports.run())
            tasks.create_task(keep_signed(self._signed, self._clock))
            tasks.create_task(self._follow_files())
            tasks.create_task(self._notify())
            tasks.create_task(self._follow_clients())

    async def _follow_files(self) -> None:
        """Follow files: keys change what they do with time, and by command; country data is
        renewed."""
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

    async def _follow_clients(self) -> None:
        """Answer by what edges have measured of networks, where that is another region."""
        while await self._has_measured.wait():
            self._has_measured.clear()
            async with self._adopting:
                if self._contents is not None:
                    contents = await asyncio.to_thread(by_measured, self._contents, self._measured)
                    if contents is not self._contents:
                        self._serve(contents, is_new=False)

    def _signed(self) -> SignedZone | None:
        return None if self._contents is None else self._contents.signed

    async def _notify(self) -> None:
        """Notify secondaries of each new serial; of the last one, where another follows at once."""
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

    # --- what others report ----------------------------------------------------------------------

    def _asks(self, contents: ZoneContents) -> dict[str, list[AskEdge]]:
        """Return each edge of a region, at the first of its addresses."""
        name = dns.name.from_text(contents.spec.names[0], contents.zone.origin)
        host = name.to_text(omit_final_dot=True)
        return {
            region: [
                EdgeReports(_url(edge), host, self._token, self._tls)
                for edge in edges
                if public_addresses(edge)
            ]
            for region, edges in _edges(contents.topology).items()
        }

    def _changed(self, down: frozenset[str]) -> None:
        places = self.responder.places
        places.state = replace(places.state, down=down)

    def _told(self, busy: frozenset[str], rtts: Rtts) -> None:
        places = self.responder.places
        before = places.state
        if busy != before.busy or _have_moved(before.rtts, rtts):
            places.state = replace(before, busy=busy, rtts=rtts)

    def _told_clients(self, rtts: ClientRtts) -> None:
        self._measured = rtts
        self._has_measured.set()


def _have_moved(before: Rtts, now: Rtts) -> bool:
    """Return whether round trips are known of other regions, or differ by more than means
    wander."""
    if {source: set(known) for source, known in now.items()} != {
        source: set(known) for source, known in before.items()
    }:
        return True
    return any(
        abs(seconds - before[source][region]) > MOVED * before[source][region]
        for source, known in now.items()
        for region, seconds in known.items()
    )


def _limits(spec: AnswerLimits) -> ResponseLimits:
    return ResponseLimits(
        responses=spec.responses_per_second,
        subnets=spec.subnets_per_second,
        proofs=spec.proofs_per_second,
        exempt=[ipaddress.ip_network(each) for each in spec.exempt],
    )


def _probes(topology: Topology, seconds: float) -> dict[str, Probe]:
    """Return the probes of each region, which is up while any of its edges answers in time."""

    def probe_of(edges: list[EdgeSpec]) -> Probe:
        async def probe() -> bool:
            answers = [
                is_healthy(
                    Address(host=str(address), port=edge.port),
                    seconds=seconds,
                    tls=edge.tls is not None,
                )
                for edge in edges
                for address in public_addresses(edge)
            ]
            return any(await asyncio.gather(*answers))

        return probe

    return {name: probe_of(found) for name, found in _edges(topology).items()}


def _url(edge: EdgeSpec) -> str:
    scheme = "http" if edge.tls is None else "https"
    address = public_addresses(edge)[0]
    return f"{scheme}://{f'[{address}]' if address.version == 6 else address}:{edge.port}"


def _edges(topology: Topology) -> dict[str, list[EdgeSpec]]:
    """Return those of each region that has some."""
    edges = {
        region.name: [edge for edge in topology.edges if edge.region == region.name]
        for region in topology.regions
    }
    return {name: found for name, found in edges.items() if found}
