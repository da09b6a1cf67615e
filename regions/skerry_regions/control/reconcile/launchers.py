"""Several launchers as one: each pool says which starts its nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from skerry_regions.control.planning.launcher import Launch, Launcher, NodeSettings, Observation
from skerry_regions.spec_types import LauncherName


class Launchers:
    """See `Launcher`. The others start what is of pools that name them, `local` all else."""

    def __init__(self, local: Launcher, others: Mapping[LauncherName, Launcher]) -> None:
        self._local = local
        self._others = others
        self._remote = [*dict.fromkeys(others.values())]  # one may start what is of several names

    async def list(self) -> Observation:
        *there, here = await asyncio.gather(
            *(each.list() for each in self._remote), self._local.list()
        )
        running = dict(here.running)
        for each in there:
            running = {**each.running, **running}
        return Observation(
            running=running,
            ended=(*here.ended, *(ended for each in there for ended in each.ended)),
            members=here.members,
        )

    async def start(self, launch: Launch) -> int:
        settings = launch.settings
        name = settings.launcher if isinstance(settings, NodeSettings) else "local"
        return await self._others.get(name, self._local).start(launch)

    async def drain(self, id: str, *, patiently: bool) -> None:
        for each in (self._local, *self._remote):
            await each.drain(id, patiently=patiently)

    async def stop(self, id: str) -> None:
        for each in (self._local, *self._remote):
            await each.stop(id)
