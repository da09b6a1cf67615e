"""What a host does: report what runs here, and start and end nodes as it is ordered.

It decides nothing. While the control plane is away its nodes serve on; when it ends by SIGKILL they
do, too, and the next one finds them. When it is to stop, others are started elsewhere first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from skerry_regions.control.machines.calls import ControlAway, ControlRefused
from skerry_regions.control.machines.messages import HostOrders, HostReport
from skerry_regions.control.planning.launcher import (
    Ended,
    Launch,
    Launcher,
    LaunchFailed,
    NodeSettings,
    Observation,
    never_started,
)
from skerry_regions.control.planning.plan import DRAIN_SECONDS
from skerry_regions.control.planning.wanted import INSTALLING, Models
from skerry_regions.process.launch_folder import Slot
from skerry_regions.process.local_launcher import Deposed
from skerry_regions.process.pauses import until_set

REPORT_SECONDS = 0.5
LEAVE_SECONDS = 60.0  # that others are given to start elsewhere, when the host is to stop
MAX_ENDED = 1024  # of which the control plane has not heard

logger = logging.getLogger(__name__)

Call = Callable[[HostReport], HostOrders]
"""Reports, and returns the orders. Blocks. Raises ControlAway or ControlRefused."""


class HostLauncher(Launcher, Protocol):
    """What starts nodes on a host, for one control plane after the other."""

    def claim(self, term: int) -> None:
        """Launch for a control plane of this term. Raises Deposed, or OSError."""
        ...


class HostAgent:
    """Lives on one event loop, with its launcher."""

    def __init__(
        self,
        call: Call,
        launcher: HostLauncher,
        models: Models,
        offers: Slot,
        *,
        term: int,
        wake: asyncio.Event,
        heard: Callable[[], None],
        leave_seconds: float = LEAVE_SECONDS,
    ) -> None:
        """`term` is the highest that was obeyed here. `wake` is set when a process has ended,
        `heard` is called once, when the control plane first answers."""
        self._call = call
        self._launcher = launcher
        self._models = models
        self._offers = offers
        self._term = term
        self._wake = wake
        self._heard = heard
        self._leave_seconds = leave_seconds
        self._ended: list[Ended] = []
        self._trouble = ""  # why the last report had no answer
        self._is_revoked = False  # the other machines refuse links of this one

    async def run(self, stop: asyncio.Event) -> None:
        """Report and obey; once `stop` is set, until nothing runs here any more."""
        stopping = asyncio.ensure_future(stop.wait())
        stopping.add_done_callback(lambda _: self._wake.set())
        leaving_at: float | None = None
        try:
            while True:
                self._wake.clear()
                seen = await self._launcher.list()
                is_leaving = stop.is_set() or self._is_revoked
                if is_leaving:
                    leaving_at = leaving_at or time.monotonic()
                    await self._leave(seen, time.monotonic() - leaving_at)
                await self._report(seen, is_leaving=is_leaving)
                if is_leaving and not seen.running:
                    break
                await until_set(self._wake, REPORT_SECONDS)
        finally:
            stopping.cancel()

    async def _leave(self, seen: Observation, seconds: float) -> None:
        """End what found no other place in time; all, once the host is revoked."""
        for process in seen.running.values():
            if self._is_revoked or seconds > self._leave_seconds + DRAIN_SECONDS:
                await self._launcher.stop(process.id)
            elif seconds > self._leave_seconds and process.state != "draining":
                await self._launcher.drain(process.id, patiently=False)

    async def _report(self, seen: Observation, *, is_leaving: bool) -> None:
        self._ended = [*self._ended, *seen.ended][-MAX_ENDED:]
        report = HostReport(
            offers=self._offers,
            running=tuple(seen.running.values()),
            ended=tuple(self._ended),
            members=tuple(each for each in seen.members if each.id in seen.running),
            is_leaving=is_leaving,
        )
        try:
            orders = await asyncio.to_thread(self._call, report)
        except (ControlAway, ControlRefused) as error:
            self._is_revoked = isinstance(error, ControlRefused) and error.is_revoked
            if str(error) != self._trouble:
                self._trouble = str(error)
                logger.warning("no orders: %s; what runs here goes on", error)
            return
        self._ended, self._trouble = [], ""
        self._heard()
        self._heard = lambda: None
        await self._obey(orders, seen)

    async def _obey(self, orders: HostOrders, seen: Observation) -> None:
        if orders.term < self._term:
            logger.warning("orders of the term %d, which is over, are ignored", orders.term)
            return
        try:
            if orders.term > self._term:
                self._launcher.claim(orders.term)
                self._term = orders.term
            for id in orders.stop:
                await self._launcher.stop(id)
            for id in orders.drain:
                await self._launcher.drain(id, patiently=False)
        except (Deposed, OSError) as error:
            logger.warning("orders are not followed: %s", error)
            return
        for launch in orders.start:
            if launch.id not in seen.running:
                await self._start(launch)

    async def _start(self, launch: Launch) -> None:
        """Start it once its model is installed; the order comes again until it runs."""
        assert isinstance(launch.settings, NodeSettings)
        blocked = self._models(launch.settings.model).blocked
        if blocked == INSTALLING:
            return
        try:
            if blocked:
                raise LaunchFailed(blocked)
            await self._launcher.start(launch)
        except (LaunchFailed, Deposed) as error:
            logger.warning("%s was not started: %s", launch.id, error)
            self._ended.append(never_started(launch, f"it could not be started: {error}"))
        self._wake.set()
