"""Which regions are up, as DNS counts it: quick to leave, slow to return.

By default a region is probed every 1.5 s and counts as down after 3 failures in a row, as up again
after 5 successes; so a flapping region stays away, and a dead one, also one that says nothing at
all, is left within 6 s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from skerry_regions.topology.zone_spec import HealthSpec

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Hysteresis:
    """The state of one region. It starts as up, so that a restart of DNS moves no client."""

    spec: HealthSpec
    up: bool = True
    against: int = 0  # probes in a row that contradict `up`

    def probed(self, ok: bool) -> bool:
        """Count one probe; whether `up` has changed."""
        self.against = 0 if ok == self.up else self.against + 1
        if self.against < (self.spec.failures if self.up else self.spec.successes):
            return False
        self.up, self.against = not self.up, 0
        return True


def kept_states(
    before: Mapping[str, Hysteresis], names: Iterable[str], spec: HealthSpec
) -> dict[str, Hysteresis]:
    """Return states by a spec that may have changed: regions that stay go on as they were."""
    known = {name: before.get(name) or Hysteresis(spec) for name in names}
    return {name: replace(each, spec=spec) for name, each in known.items()}


Probe = Callable[[], Awaitable[bool]]


class HealthWatch:
    """Probes regions and reports which are down, whenever that changes."""

    def __init__(
        self, probes: Mapping[str, Probe], changed: Callable[[frozenset[str]], None]
    ) -> None:
        self._changed = changed
        self._regions: dict[str, Hysteresis] = {}
        self.watch(probes, HealthSpec())

    def watch(self, probes: Mapping[str, Probe], spec: HealthSpec) -> None:
        """Watch these from now on. What is known of regions that stay is kept."""
        self._spec = spec
        self._probes = probes
        self._regions = kept_states(self._regions, probes, spec)

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Watch until cancelled. `sleep` is a parameter so that tests need not wait."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await self.round()
            await sleep(max(0.0, began + self._spec.interval - loop.time()))

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
