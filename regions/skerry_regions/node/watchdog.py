"""Watches the engines of a node in its own process, where no supervisor can kill it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from skerry_regions.node.canary import CANARY_SECONDS, Canary
from skerry_regions.node.node import Node
from skerry_regions.process.cancellation import cancel_tasks

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0  # between checks
PATIENCE_SECONDS = 30.0  # with an engine that lives and answers nothing


class Watchdog:
    """Calls `lost` with the reason, once an engine has crashed or has hung for `patience` seconds.

    Seconds in which the event loop was late do not count: whoever is not run cannot tell a hung
    engine from one that is not run either, and starting again takes more of a full machine.

    Runs on the event loop that creates it.
    """

    def __init__(
        self,
        node: Node,
        lost: Callable[[str], None],
        *,
        every: float = LOOK_SECONDS,
        patience: float = PATIENCE_SECONDS,
        canary_seconds: float = CANARY_SECONDS,
    ) -> None:
        self.ailment: str | None = None  # what is wrong now
        self._node = node
        self._canary = Canary(node, seconds=canary_seconds)
        self._lost = lost
        self._every = every
        self._patience = patience
        self._longest = every + canary_seconds  # that a look takes, on time
        self._task = asyncio.create_task(self._watch(), name="watchdog")

    async def close(self) -> None:
        await cancel_tasks(self._task)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        ill_seconds = 0.0
        while True:
            began = loop.time()
            await asyncio.sleep(self._every)
            crashed = [each.model for each in self._node.status() if each.state == "failed"]
            if crashed:
                self.ailment = f"the engine of {crashed[0]} stopped on an error"
                return self._lost(self.ailment)
            self.ailment = await self._canary.ailment()
            if self.ailment is None:
                ill_seconds = 0.0
                continue
            logger.warning("an engine is ill: %s", self.ailment)
            ill_seconds += min(loop.time() - began, self._longest)
            if ill_seconds > self._patience:
                return self._lost(self.ailment)
