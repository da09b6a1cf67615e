"""What befalls nodes: a seeded script of deaths, freezes, drains and bad links."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter, defaultdict
from random import Random

import httpx
from tests.faults.relays import Relays

from skerry_cli.home.control import NodeStatus, ask_status

SETTLE_SECONDS = 3.0  # in which a node is taken for away, whatever its state seems to be


class Strikes:
    """Hits one node after the other, but never the last one that is whole.

    `control` is the path of the platform's status socket; `nodes` are those that may be hit, where
    they are there: one that was drained has a successor of another name.
    """

    def __init__(self, control: str, nodes: list[str], relays: Relays, rng: Random) -> None:
        self._control, self._nodes, self._relays, self._rng = control, nodes, relays, rng
        self._broken_until = defaultdict[str, float](float)  # times of the event loop
        self._under_way: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()

    async def run(self, seconds: float, pause: tuple[float, float]) -> None:
        """Strike for so long; what was frozen goes on at the end."""
        try:
            await self._strike(seconds, pause)
        finally:
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _strike(self, seconds: float, pause: tuple[float, float]) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            await asyncio.sleep(self._rng.uniform(*pause))
            strike = self._rng.choice(
                (self.kill, self.freeze, self.drain, self.partition, self.cut, self.spoil,
                 self.slow_down)
            )  # fmt: skip
            if not (present := await self._present()):
                continue
            node = self._rng.choice(present)
            away = strike in (self.kill, self.freeze, self.drain, self.partition)
            if away and not await self.others_are_whole(node):
                continue
            self.counts[strike.__name__] += 1
            task = asyncio.create_task(strike(node))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        await asyncio.gather(*self._under_way)

    async def others_are_whole(self, node: str) -> bool:
        """Whether another node serves."""
        now = asyncio.get_running_loop().time()
        nodes = (await asyncio.to_thread(ask_status, self._control)).nodes
        return any(
            each.state == "ready" and self._broken_until[each.id] < now
            for each in nodes
            if each.id != node
        )

    async def _present(self) -> list[str]:
        status = await asyncio.to_thread(ask_status, self._control)
        return [each.id for each in status.nodes if each.id in self._nodes]

    def _note(self, node: str, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        self._broken_until[node] = max(self._broken_until[node], end)

    # --- strikes ---------------------------------------------------------------------------------

    async def kill(self, node: str) -> None:
        self._note(node, SETTLE_SECONDS)
        await self._signal(node, signal.SIGKILL)

    async def freeze(self, node: str) -> None:
        seconds = self._rng.uniform(0.2, 6.0)
        self._note(node, seconds + SETTLE_SECONDS)
        pid = await self._signal(node, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:  # whatever becomes of the test, nobody stays frozen
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGCONT)

    async def drain(self, node: str) -> None:
        self._note(node, SETTLE_SECONDS)
        status = await self._status(node)
        if status is None or not status.control:  # it has ended
            return
        socket = status.control.removeprefix("unix:")
        transport = httpx.AsyncHTTPTransport(uds=socket)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            with contextlib.suppress(httpx.HTTPError):  # it is just being started
                await client.post("/drain", timeout=5)

    async def partition(self, node: str) -> None:
        seconds = self._rng.uniform(0.2, 5.0)
        self._note(node, seconds + SETTLE_SECONDS)
        await asyncio.gather(
            *(self._relays[node, kind].hold_up(seconds) for kind in ("node", "kv"))
        )

    async def cut(self, node: str) -> None:
        self._relays[node, self._rng.choice(("node", "kv"))].cut()

    async def spoil(self, node: str) -> None:
        self._relays[node, "kv"].to_spoil += 1

    async def slow_down(self, node: str) -> None:
        kind = self._rng.choice(("node", "kv"))
        await self._relays[node, kind].slow_down(self._rng.uniform(1, 4), bytes_per_second=2e4)

    async def _signal(self, node: str, number: signal.Signals) -> int:
        """The process that got it; 0 when there was none."""
        status = await self._status(node)
        pid = 0 if status is None else status.pid
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pid

    async def _status(self, node: str) -> NodeStatus | None:
        status = await asyncio.to_thread(ask_status, self._control)
        return next((each for each in status.nodes if each.id == node), None)
