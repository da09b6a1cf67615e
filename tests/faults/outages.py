"""What everybody leans on goes away and comes back: room on the disk, and the registry."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from tests.disks import fill

from skerry_cli.home.control import Status, ask_status

SHORTEST, LONGEST = 3.0, 8.0  # seconds of an outage
LOOK_SECONDS = 0.1
BACK_SECONDS = 5.0  # after it, until all is as before


class Store(Protocol):
    """What the registry keeps its records in."""

    def kill(self) -> None: ...
    def start(self) -> None: ...


@dataclass(frozen=True)
class FileStore:
    """The registry's file: to kill it is to delete it."""

    folder: Path

    def kill(self) -> None:
        for path in self.folder.glob("registry.db*"):
            path.unlink(missing_ok=True)

    def start(self) -> None:
        """It is made again by whoever writes first."""


class Outages:
    """Fills the disk, ends the registry, or both, for some seconds; and takes the time until all
    processes are ready, in the registry, and connected."""

    def __init__(self, control: str, disk: Path, store: Store, rng: Random) -> None:
        self._control, self._disk, self._store, self._rng = control, disk, store, rng
        self.counts: Counter[str] = Counter()
        self.back: list[float] = []  # seconds after each outage
        self.calm = asyncio.Event()  # nothing else may be struck: it is about to end
        self.calm.set()

    async def run(self, seconds: float) -> None:
        """One outage after the other, for so long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            kind = self._rng.choice(("disk", "registry", "both"))
            self.counts[kind] += 1
            await self._outage(disk=kind != "registry", registry=kind != "disk")
            self.back.append(await self._until_back())

    async def _outage(self, *, disk: bool, registry: bool) -> None:
        filled = await asyncio.to_thread(fill, self._disk) if disk else None
        try:
            if registry:
                await asyncio.to_thread(self._store.kill)
            self.calm.clear()
            await asyncio.sleep(self._rng.uniform(SHORTEST, LONGEST))
            self.calm.set()
            await self._until_ready()
        finally:
            if registry:
                await asyncio.to_thread(self._store.start)
            if filled is not None:
                filled.unlink()

    async def _until_ready(self) -> None:
        """Wait for what was killed meanwhile: without the disk and the registry it is ready."""
        async with asyncio.timeout(120):
            while any(  # noqa: ASYNC110 - other processes bring it about
                node.state != "ready" for node in (await self._status()).nodes
            ):
                await asyncio.sleep(LOOK_SECONDS)

    async def _until_back(self) -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with asyncio.timeout(120):
            while await self._trouble():  # noqa: ASYNC110 - likewise
                await asyncio.sleep(LOOK_SECONDS)
        return loop.time() - begun

    async def _trouble(self) -> list[str]:
        status = await self._status()
        amiss = [node.id for node in status.nodes if node.state != "ready"]
        return amiss + [note for note in status.notes if "restarted" not in note]

    async def _status(self) -> Status:
        return await asyncio.to_thread(ask_status, self._control)
