"""Several launchers as one: each pool says which starts its nodes."""

from __future__ import annotations

import asyncio

from skerry_regions.control.planning.launcher import Launch, Launcher, NodeSettings, Observation


class Launchers:
    """See `Launcher`. `local` starts all but nodes of pools on hosts, which may be pods."""

    def __init__(self, local: Launcher, hosts: Launcher) -> None:
        self._local = local
        self._hosts = hosts

    async def list(self) -> Observation:
        there, here = await asyncio.gather(self._hosts.list(), self._local.list())
        return Observation(
            running={**there.running, **here.running},
            ended=(*here.ended, *there.ended),
            members=here.members,
        )

    async def start(self, launch: Launch) -> int:
        settings = launch.settings
        is_hosted = isinstance(settings, NodeSettings) and settings.is_hosted
        return await (self._hosts if is_hosted else self._local).start(launch)

    async def drain(self, id: str, *, patiently: bool) -> None:
        for each in (self._local, self._hosts):
            await each.drain(id, patiently=patiently)

    async def stop(self, id: str) -> None:
        for each in (self._local, self._hosts):
            await each.stop(id)
