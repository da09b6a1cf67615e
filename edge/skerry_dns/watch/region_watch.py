"""What edges tell of their regions: work that waits there, and round trips to other regions.

Both stand in an edge's metrics. They are the figures by which its router places requests.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from skerry_dns.watch.health import INTERVAL, Hysteresis
from skerry_dns.watch.rtt import MeasuredRtt

BUSY_SECONDS = 2.0  # of waiting work: far more than a detour to the next region costs
ASK_SECONDS = 2.0
MAX_METRICS = 1 << 20  # bytes
_LINE = re.compile(
    r'^skerry_region_(queue|rtt)_seconds\{region="([^"]{1,256})"\} ([0-9.e+-]{1,32})$', re.MULTILINE
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EdgeFigures:
    """Seconds, by region."""

    queue: Mapping[str, float] = field(default_factory=dict[str, float])
    rtt: Mapping[str, float] = field(default_factory=dict[str, float])


Ask = Callable[[], Awaitable[EdgeFigures]]
Rtts = Mapping[str, Mapping[str, float]]  # seconds, by source and region


class RegionWatch:
    """Asks edges, and tells which regions are busy and how far regions are from each other."""

    def __init__(
        self, edges: Mapping[str, Sequence[Ask]], tell: Callable[[frozenset[str], Rtts], None]
    ) -> None:
        """`edges` are those of each region."""
        self._tell = tell
        self._calm: dict[str, Hysteresis] = {}
        self._rtts = MeasuredRtt()
        self.watch(edges)

    def watch(self, edges: Mapping[str, Sequence[Ask]]) -> None:
        """From now on these. What is known of regions that stay is kept."""
        self._edges = edges
        self._calm = {region: self._calm.get(region) or Hysteresis() for region in edges}

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Until cancelled. `sleep` is a parameter so that tests need not wait."""
        while True:
            await self.round()
            await sleep(INTERVAL)

    async def round(self) -> None:
        """Ask every edge once, all at the same time."""
        calm = self._calm  # others may take their place meanwhile
        await asyncio.gather(
            *(self._ask(region, asks, calm[region]) for region, asks in self._edges.items())
        )
        busy = frozenset(region for region, each in self._calm.items() if not each.up)
        self._tell(busy, {region: self._rtts.of(region) for region in self._edges})

    async def _ask(self, region: str, asks: Sequence[Ask], calm: Hysteresis) -> None:
        told = await asyncio.gather(*(ask() for ask in asks))
        for figures in told:
            for other in figures.rtt.keys() & self._edges.keys():
                self._rtts.add(region, other, figures.rtt[other])
        queues = [figures.queue[region] for figures in told if region in figures.queue]
        if queues and calm.probed(min(queues) < BUSY_SECONDS):
            logger.warning("region %s is %s", region, "calm" if calm.up else "busy")


async def ask_edge(url: str) -> EdgeFigures:
    """Of one edge's metrics; nothing where it does not answer well. Any certificate will do: who
    answers in an edge's place could be its health as well."""
    text = bytearray()
    try:
        async with (
            asyncio.timeout(ASK_SECONDS),
            httpx.AsyncClient(timeout=ASK_SECONDS, trust_env=False, verify=False) as client,
            client.stream("GET", f"{url}/metrics") as response,
        ):
            async for piece in response.aiter_bytes():
                text += piece
                if len(text) > MAX_METRICS:
                    return EdgeFigures()
        return read_figures(text.decode())
    except (httpx.HTTPError, TimeoutError, ValueError):
        return EdgeFigures()


def read_figures(text: str) -> EdgeFigures:
    """Out of metrics as text. Raises ValueError."""
    found: dict[str, dict[str, float]] = {"queue": {}, "rtt": {}}
    for kind, region, seconds in _LINE.findall(text):
        found[kind][region] = float(seconds)
    return EdgeFigures(**found)
