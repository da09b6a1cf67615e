"""Makes what is wanted so, and keeps it so.

    look ─▶ plan ─▶ act ─▶ report ─▶ wait for a change, or half a second
      ▲                                         │
      └─────────────────────────────────────────┘

It remembers nothing that matters: after a restart the first look shows what runs. What it does
remember, such as who failed lately, only spares work.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sqlite3
from collections.abc import Callable, Iterable
from random import Random

import msgspec

from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.desired import Desired, Record
from skerry_regions.control.desired.resources import EDGE_NODE, Status
from skerry_regions.control.desired.store import EDGE_PORT, Store
from skerry_regions.control.desired.views import NodeView, ResourceFailure
from skerry_regions.control.errors import ControlError
from skerry_regions.control.machines.joined import Wanted
from skerry_regions.control.planning.launcher import (
    Ended,
    Launcher,
    LaunchFailed,
    Observation,
    RunningProcess,
)
from skerry_regions.control.planning.plan import (
    Action,
    Drain,
    DrainTimeouts,
    Group,
    Kill,
    StartProcess,
    closing,
    core_share,
    plan,
)
from skerry_regions.control.planning.platform_topology import platform_topology
from skerry_regions.control.planning.wanted import Models, wanted
from skerry_regions.control.reconcile.deletions import remove_ended
from skerry_regions.control.reconcile.failures import Failures
from skerry_regions.control.reconcile.first_start import FirstStart
from skerry_regions.control.reconcile.observed import (
    Picture,
    drainable,
    node_views,
    resource_failures,
    resource_of,
    statuses,
)
from skerry_regions.control.reconcile.scaling import PoolScales
from skerry_regions.process.pauses import until_set
from skerry_regions.registry import Member

LOOK_SECONDS = 0.5

JoinedRunning = Callable[[Iterable[Member]], list[RunningProcess]]
"""Of all members, what runs on machines that joined."""

logger = logging.getLogger(__name__)


class Reconciler:
    """See `Observer`. Lives on one event loop, with the launcher."""

    def __init__(
        self,
        store: Store,
        changes: Changes,
        launcher: Launcher,
        models: Models,
        *,
        wake: asyncio.Event,
        rng: Random | None = None,
        clock: Callable[[], float] | None = None,
        look_seconds: float = LOOK_SECONDS,
        joined: JoinedRunning = lambda members: [],
        first_start: FirstStart | None = None,
    ) -> None:
        """`wake` is set by whoever has changed something: it need not wait for the next look."""
        self._joined_of = joined
        self._joined: list[RunningProcess] = []  # what runs on machines that joined
        self._store = store
        self._changes = changes
        self._launcher = launcher
        self._models = models
        self._clock = clock or asyncio.get_running_loop().time
        self._look_seconds = look_seconds
        self._wake = wake
        self.failures = Failures(rng or Random())
        self._groups: dict[str, Group] = {}
        self._scales = PoolScales(store)
        self._observation = Observation()
        self._statuses: dict[tuple[str, str], Status] = {}
        self._revision = 0
        self.num_errors = 0  # looks that failed
        self._looked_at = self._clock()
        self._ending_at: float | None = None
        self._outdated = set[tuple[str, int]]()  # ids and pids of what is to be replaced
        self._first_start = first_start  # of whoever waits until all is ready

    # --- what others see -------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        return self._revision

    def status(self, record: Record) -> Status | None:
        return self._statuses.get((record.kind.name, record.id))

    def nodes(self) -> list[NodeView]:
        return node_views(self._groups, [*self._observation.running.values(), *self._joined])

    def failing(self) -> list[ResourceFailure]:
        return resource_failures(self._store.desired, self.failures.failing)

    @property
    def members(self) -> tuple[Member, ...]:
        """Return who is in the registry, on all machines, by the last look."""
        return self._observation.members

    @property
    def seconds_behind(self) -> float:
        """Return seconds since the last look that went well."""
        return self._clock() - self._looked_at

    def wanted(self) -> Wanted | None:
        """Return the desired state; None before the first look."""
        return Wanted(self._store.desired, self._groups) if self._revision else None

    # --- the loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Reconcile until cancelled. What fails once is tried again."""
        while True:
            await self._try_step()
            await until_set(self._wake, self._look_seconds)

    async def drain_all(self) -> None:
        """End everything that runs, edges first; what is wanted stays written down."""
        self._ending_at = self._clock()
        await self._try_step()
        for process in self._observation.running.values():
            if process.kind == "edge":
                await self._launcher.drain(process.id, patiently=False)
        while self._observation.running:
            await until_set(self._wake, self._look_seconds)
            await self._try_step()

    def renew_edges(self) -> None:
        """Have a successor for every edge, which reads all again; streams finish where they are."""
        running = self._observation.running.values()
        self._outdated = {(each.id, each.pid) for each in running if each.kind == "edge"}
        self._wake.set()

    def drain(self, id: str) -> NodeView:
        """Replace a process: when its successor is ready, it drains. Raises ControlError."""
        view = drainable(self.nodes(), self._observation.running, id)
        self._outdated.add((view.id, view.pid))
        self._wake.set()
        return view

    async def _try_step(self) -> None:
        self._wake.clear()
        try:
            await self.step()
            self._looked_at = self._clock()
        except (OSError, sqlite3.Error, ControlError):
            self.num_errors += 1
            logger.exception("could not reconcile; trying again")

    async def step(self) -> None:
        """Look once, and do what there is to do."""
        desired = self._store.desired
        self._observation = (await self._launcher.list()).without_fingerprint(self._outdated)
        self._outdated &= {(each.id, each.pid) for each in self._observation.running.values()}
        self._joined = self._joined_of(self._observation.members)
        for ended in self._observation.ended:
            await self._take_end(ended)
        self._groups = self._wanted(desired)
        observation, now = self._observation, self._clock()
        await asyncio.to_thread(self._scales.decide, desired, self._groups, observation, now)
        self._groups = self._wanted(desired)
        running = self._observation.running
        held = self.failures.held(self._groups.keys(), now)
        groups, timeouts = self._groups, DrainTimeouts()
        if self._ending_at is not None:
            steer = desired.routing().steer
            lingering = 0.0 if steer is None else steer.drain_seconds
            groups = closing(groups, running)
            timeouts = DrainTimeouts.at_end(running, now - self._ending_at, lingering)
        for action in plan(groups, running.values(), held, timeouts):
            await self._act(action)
        await asyncio.to_thread(self._settle, desired)
        self._tell(desired)
        if self._first_start is not None:
            self._first_start.look(self._groups, running, observation.ended)

    def _wanted(self, desired: Desired) -> dict[str, Group]:
        ports = self._store.edge_ports()
        return wanted(desired, self._models, scales=self._scales.replicas, ports=ports)

    # --- acting ----------------------------------------------------------------------------------

    async def _act(self, action: Action) -> None:
        match action:
            case StartProcess(launch):
                launch = dataclasses.replace(
                    launch,
                    share=core_share(self._groups.values()),
                    topology=msgspec.json.encode(platform_topology(self._store.desired)),
                )
                try:
                    port = await self._launcher.start(launch)
                except LaunchFailed as error:
                    if self._first_start is not None:
                        self._first_start.failed(launch.owner, str(error))
                    return await self._failed(launch.id, launch.owner, 0.0, str(error))
                if port:
                    await asyncio.to_thread(self._keep_port, launch.owner, port)
                await self._event(launch.owner, "normal", "Started", f"{launch.id} was started")
            case Drain(id):
                process = self._observation.running[id]
                await self._launcher.drain(id, patiently=self._ending_at is None)
                await self._event(
                    process.owner, "normal", "Draining",
                    f"{id} drains, {process.streams} streams",
                )  # fmt: skip
            case Kill(id, reason):
                owner = self._observation.running[id].owner
                await self._launcher.stop(id)
                await self._event(owner, "warning", "Killed", f"{id} was killed: {reason}")

    def _keep_port(self, edge: str, port: int) -> None:
        with self._store.writing() as writing:
            if writing.desired.get(EDGE_NODE, edge) is not None:
                writing.decide(EDGE_NODE, edge, EDGE_PORT, port)

    async def _take_end(self, ended: Ended) -> None:
        if ended.asked:
            self.failures.ended(ended.id)
            return await self._event(
                ended.owner, "normal", "Drained", f"{ended.id} drained and ended"
            )
        seconds = ended.ran_seconds
        await self._failed(ended.id, ended.owner, seconds, ended.sentence, ended.status)

    async def _failed(
        self, id: str, owner: str, ran_seconds: float, what: str, status: int | None = None
    ) -> None:
        """Record that it ended by itself, or did not start: it will be, after a growing pause."""
        message = self.failures.failed(id, owner, ran_seconds, what, self._clock(), status)
        logger.warning("%s", message)
        await self._event(owner, "warning", "Ended", message)

    async def _event(self, owner: str, type: str, reason: str, message: str) -> None:
        kind, id = resource_of(self._store.desired, owner)

        def write() -> None:
            with self._store.writing() as writing:
                writing.event(kind, id, type, reason, message)

        await asyncio.to_thread(write)

    # --- deletions and reports -------------------------------------------------------------------

    def _settle(self, desired: Desired) -> None:
        """Remove what was to go and has nothing running any more; publish tokens."""
        self._changes.settle_tokens()
        processes = (*self._observation.running.values(), *self._joined)
        remove_ended(self._store, desired, {process.owner for process in processes})

    def _tell(self, desired: Desired) -> None:
        self.failures.recovered(self._observation.running.values())
        picture = Picture(
            desired=desired,
            groups=self._groups,
            running=self._observation.running,
            joined=self._joined,
            failing=self.failures.failing,
            before=self._statuses,
            now=self._store.clock(),
        )
        self._statuses = statuses(picture)
        self._revision = desired.revision
