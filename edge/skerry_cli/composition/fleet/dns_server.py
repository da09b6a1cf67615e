"""The DNS server beside the edges of `skerry up`, where the topology has a zone.

The platform runs without it too: its port may be taken, or the operator runs another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from skerry_regions.process.children import ProcessSpec
from skerry_regions.process.supervisor import FirstStartFailed, Supervised

ID = "dns"
STOP_SECONDS = 5.0


class FleetDns:
    """A supervised `skerry dns`. Lives on one event loop."""

    def __init__(self, spec: ProcessSpec, supervise: Callable[[ProcessSpec], Supervised]) -> None:
        self.process = supervise(spec)
        self.trouble = ""  # why it never started
        self._waiting = asyncio.create_task(self._wait())

    async def stop(self) -> None:
        self._waiting.cancel()
        await self.process.stop(STOP_SECONDS)

    async def _wait(self) -> None:
        try:
            await self.process.wait_until_ready()
        except FirstStartFailed as error:
            self.trouble = str(error)
