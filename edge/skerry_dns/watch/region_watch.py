"""Which regions are busy and how far from each other, by what their edges report."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from skerry_dns.watch.health import Hysteresis, kept_states
from skerry_regions.geo.measured_rtt import MeasuredRtt
from skerry_regions.geo.networks import Network
from skerry_regions.geo.region_report import RegionReport
from skerry_regions.geo.whereabouts import ClientRtts
from skerry_regions.topology.zone_spec import HealthSpec

CLIENT_ROUNDS = 200  # between questions for round trips to clients: five minutes by default

logger = logging.getLogger(__name__)


class AskEdge(Protocol):
    """Reads the report of one edge; see `EdgeReports`."""

    def __call__(self, *, clients: bool = False) -> Awaitable[RegionReport | None]: ...


Rtts = Mapping[str, Mapping[str, float]]  # seconds, by source and region


class RegionWatch:
    """Queries edges, and reports which regions are busy and how far regions are from each other."""

    def __init__(
        self,
        edges: Mapping[str, Sequence[AskEdge]],
        tell: Callable[[frozenset[str], Rtts], None],
        tell_clients: Callable[[ClientRtts], None] = lambda rtts: None,
    ) -> None:
        """`edges` are those of each region. Round trips to clients are requested every
        `CLIENT_ROUNDS` rounds, and reported then."""
        self._tell = tell
        self._tell_clients = tell_clients
        self._rounds = 0
        self._clients: dict[str, dict[str, float]] = {}
        self._calm: dict[str, Hysteresis] = {}
        self._rtts = MeasuredRtt()
        self.watch(edges, HealthSpec())

    def watch(self, edges: Mapping[str, Sequence[AskEdge]], spec: HealthSpec) -> None:
        """Watch these from now on. What is known of regions that stay is kept."""
        self._spec = spec
        self._edges = edges
        self._calm = kept_states(self._calm, edges, spec)

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Watch until cancelled. `sleep` is a parameter so that tests need not wait."""
        while True:
            await self.round()
            await sleep(self._spec.interval)

    async def round(self) -> None:
        """Query every edge once, all at the same time."""
        calm = self._calm  # others may take their place meanwhile
        self._rounds += 1
        asks_clients = self._rounds % CLIENT_ROUNDS == 0
        self._clients = {}
        await asyncio.gather(
            *(
                self._ask(region, asks, calm[region], asks_clients)
                for region, asks in self._edges.items()
            )
        )
        if asks_clients:
            self._tell_clients(_networks(self._clients))
        busy = frozenset(region for region, each in self._calm.items() if not each.up)
        self._tell(busy, {region: self._rtts.of(region) for region in self._edges})

    async def _ask(
        self, region: str, asks: Sequence[AskEdge], calm: Hysteresis, clients: bool
    ) -> None:
        answers = await asyncio.gather(*(ask(clients=clients) for ask in asks))
        reports = [each for each in answers if each is not None and each.region == region]
        for report in reports:
            for other in report.rtt_seconds.keys() & self._edges.keys():
                self._rtts.add(region, other, report.rtt_seconds[other])
            for network, seconds in report.client_rtt_seconds.items():
                known = self._clients.setdefault(network, {})
                known[region] = min(seconds, known.get(region, seconds))
        queues = [each.queue_seconds for each in reports if each.queue_seconds is not None]
        if queues and calm.probed(min(queues) < self._spec.busy_seconds):
            logger.warning("region %s is %s", region, "calm" if calm.up else "busy")


def _networks(reported: Mapping[str, Mapping[str, float]]) -> ClientRtts:
    """Return them by network; what is none is left out."""
    found: dict[Network, Mapping[str, float]] = {}
    for text, known in reported.items():
        try:
            found[ipaddress.ip_network(text)] = known
        except ValueError:
            continue
    return found
