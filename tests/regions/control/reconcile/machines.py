"""Resources written down, and a launcher that starts no process."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from random import Random
from typing import Any

from tests.clock import Clock
from tests.regions.control.support import Tokens, new

from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.desired import Record
from skerry_regions.control.desired.resources import BY_NAME
from skerry_regions.control.desired.store import Store
from skerry_regions.control.planning.launcher import (
    DnsSettings,
    EdgeSettings,
    Ended,
    Launch,
    LaunchFailed,
    NodeSettings,
    Observation,
    ProcessKind,
    RelaySettings,
    RunningProcess,
    fingerprint,
)
from skerry_regions.control.planning.wanted import ModelState
from skerry_regions.control.reconcile.reconciler import Reconciler
from skerry_regions.registry import Member

KIND_OF: dict[type, ProcessKind] = {
    NodeSettings: "node", EdgeSettings: "edge", RelaySettings: "relays", DnsSettings: "dns",
}  # fmt: skip


class Machine:
    """A launcher whose processes are entries of a dict. They live on when reconcilers change."""

    def __init__(self) -> None:
        self.running: dict[str, RunningProcess] = {}
        self.launches: dict[str, Launch] = {}
        self.ended: list[Ended] = []
        self.members: list[Member] = []
        self.broken = ""
        self.started: list[str] = []

    async def list(self) -> Observation:
        ended, self.ended = tuple(self.ended), []
        return Observation(dict(self.running), ended, tuple(self.members))

    async def start(self, launch: Launch) -> int:
        if self.broken:
            raise LaunchFailed(self.broken)
        assert launch.id not in self.running
        self.started.append(launch.id)
        self.launches[launch.id] = launch
        is_edge = isinstance(launch.settings, EdgeSettings)
        port = launch.port or launch.former_port or 4000
        self.running[launch.id] = RunningProcess(
            id=launch.id,
            owner=launch.owner,
            kind=KIND_OF[type(launch.settings)],
            region=launch.settings.region,
            fingerprint=fingerprint(launch.settings),
            pid=len(self.started),
            state="starting",
            address=f"http://127.0.0.1:{port}" if is_edge else "",
        )
        return port if is_edge else 0

    async def drain(self, id: str, *, patiently: bool) -> None:
        if id in self.running:
            self.become(id, state="draining")

    async def stop(self, id: str) -> None:
        self.die(id)

    def ready(self) -> None:
        """Whoever starts is ready now, and who drains has ended."""
        for id, process in list(self.running.items()):
            if process.state == "starting":
                self.become(id, state="ready")
            elif process.state == "draining":
                self.die(id, asked=True)

    def die(self, id: str, *, asked: bool = False) -> None:
        process = self.running.pop(id)
        self.ended.append(Ended(id=id, owner=process.owner, asked=asked, ran_seconds=1.0))

    def become(self, id: str, **more: Any) -> None:
        self.running[id] = dataclasses.replace(self.running[id], **more)


class World:
    """A store, a machine, and the reconciler between them."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "control.db", clock=Clock(1_700_000_000.0))
        self.tokens = Tokens()
        self.changes = Changes(self.store, self.tokens, b"s" * 32)
        self.machine = Machine()
        self.clock = Clock(0.0)
        self.blocked = self.unknown = ""
        self.reconciler = self.new_reconciler()

    def new_reconciler(self) -> Reconciler:
        return Reconciler(
            self.store, self.changes, self.machine,
            lambda name: ModelState(id=name * (name != self.unknown), blocked=self.blocked),
            wake=asyncio.Event(), rng=Random(1), clock=self.clock, look_seconds=0.005,
        )  # fmt: skip

    def make(self, collection: str, **values: Any) -> Record:
        return new(self.store, collection, **values)

    def patch(self, kind: str, id: str, **values: Any) -> None:
        self.changes.update(BY_NAME[kind], id, values, actor="test", if_match=None)

    def delete(self, kind: str, id: str) -> None:
        self.changes.delete(BY_NAME[kind], id, actor="test", if_match=None)

    async def steps(self, number: int = 1) -> None:
        """Each a look, and what comes of it."""
        for _ in range(number):
            await self.reconciler.step()
            self.machine.ready()
            self.clock.now += 1

    def status(self, kind: str, id: str) -> Any:
        record = self.store.desired.get(BY_NAME[kind], id)
        assert record is not None
        return self.reconciler.status(record)

    def events(self) -> list[str]:
        return [event.reason for event in self.store.events(0, 500)]
