"""Which regions are up, as DNS counts it: quick to leave, slow to return.

A region is probed every 1.5 s and counts as down after 3 failures in a row, as up again after 5
successes; so a flapping region stays away, and a dead one, also one that says nothing at all, is
left within 6 s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

FAILURES = 3
SUCCESSES = 5
INTERVAL = 1.5  # seconds from the start of a probe to that of the next …
PROBE_SECONDS = 1.5  # … and what a probe may take: four round trips to the far side of the world

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Hysteresis:
    """The state of one region. It starts as up, so that a restart of DNS moves nobody."""

    up: bool = True
    against: int = 0  # probes in a row that contradict `up`

    def probed(self, ok: bool) -> bool:
        """Count one probe; whether `up` has changed."""
        self.against = 0 if ok == self.up else self.against + 1
        if self.against < (FAILURES if self.up else SUCCESSES):
            return False
        self.up, self.against = not self.up, 0
        return True


Probe = Callable[[], Awaitable[bool]]


class HealthWatch:
    """Probes regions and tells which are down, whenever that changes."""

    def __init__(
        self, probes: Mapping[str, Probe], changed: Callable[[frozenset[str]], None]
    ) -> None:
        self._changed = changed
        self._regions: dict[str, Hysteresis] = {}
        self.watch(probes)

    def watch(self, probes: Mapping[str, Probe]) -> None:
        """From now on these. What is known of regions that stay is kept."""
        self._probes = probes
        self._regions = {name: self._regions.get(name) or Hysteresis() for name in probes}

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Until cancelled. `sleep` is a parameter so that tests need not wait."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await self.round()
            await sleep(max(0.0, began + INTERVAL - loop.time()))

    async def round(self) -> None:
        """Probe every region once, all at the same time."""
        regions = self._regions  # others may take their place meanwhile
        names = list(self._probes)
        results = await asyncio.gather(*(self._probes[name]() for name in names))
        changes = [
            name for name, ok in zip(names, results, strict=True) if regions[name].probed(ok)
        ]
        for name in changes:
            logger.warning("region %s is %s", name, "up" if regions[name].up else "down")
        if changes:
            self._changed(
                frozenset(name for name, region in self._regions.items() if not region.up)
            )
