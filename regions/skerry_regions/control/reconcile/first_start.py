"""The first start of a platform that someone waits for: all is ready, or what did not start."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from skerry_regions.control.planning.launcher import (
    DNS,
    DnsSettings,
    EdgeSettings,
    Ended,
    RunningProcess,
    fingerprint,
)
from skerry_regions.control.planning.plan import Group
from skerry_regions.control.planning.wanted import INSTALLING
from skerry_regions.process.supervisor import FirstStartFailed


class FirstStart:
    """Follows the looks of a reconciler until all that is wanted is ready. Lives on one event loop.

    A zone's server may fail: the platform runs without it. Where processes of a former supervisor
    were adopted they serve, so nothing else is fatal, and it is over once every edge runs.
    """

    def __init__(self, *, has_adopted: bool) -> None:
        self._has_adopted = has_adopted
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        """Wait until it is over. Raises FirstStartFailed as soon as a process ended before it was
        ready, or cannot be started."""
        await asyncio.shield(self._over)

    def look(
        self,
        groups: Mapping[str, Group],
        running: Mapping[str, RunningProcess],
        ended: Iterable[Ended],
    ) -> None:
        """Take in a look: what is wanted, what runs, and what ended since the last one."""
        for each in ended:
            if not each.asked and not each.was_ready:
                told = f"; {each.log} ends with:\n{each.last_words}" if each.log else ""
                self.failed(each.owner, f"{each.id} did not start{told}")
        if not self._over.done() and all(self._is_there(groups[id], running) for id in groups):
            self._over.set_result(None)

    def failed(self, owner: str, message: str) -> None:
        """Take in that a process did not start."""
        if not (self._has_adopted or self._over.done() or owner.startswith(DNS)):
            self._over.set_exception(FirstStartFailed(message))

    def _is_there(self, group: Group, running: Mapping[str, RunningProcess]) -> bool:
        is_needed = group.replicas > 0 and not isinstance(group.settings, DnsSettings)
        if not is_needed or group.blocked not in ("", INSTALLING):
            return True
        processes = [each for each in running.values() if each.owner == group.id]
        if self._has_adopted:
            return bool(processes) or not isinstance(group.settings, EdgeSettings)
        wanted = fingerprint(group.settings)
        ready = [each for each in processes if (each.state, each.fingerprint) == ("ready", wanted)]
        return len(ready) >= group.replicas
