"""The control plane's launcher for its own machine: what a launch says, as a process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from msgspec.structs import replace

from skerry_regions.address import Address
from skerry_regions.control.planning.launcher import (
    SILENT,
    EdgeSettings,
    Ended,
    Launch,
    LaunchFailed,
    Observation,
    RunningProcess,
)
from skerry_regions.control.reconcile.edge_listeners import EdgeListeners
from skerry_regions.control.reconcile.launched import judged
from skerry_regions.control.reconcile.neighbours import write_neighbours
from skerry_regions.control.reconcile.programs import LaunchPrograms
from skerry_regions.models.sources import Progress
from skerry_regions.process.cancellation import cancel_tasks
from skerry_regions.process.launch_folder import LaunchFolder, LaunchRecord
from skerry_regions.process.lifeline import reports
from skerry_regions.process.local_launcher import LaunchedProcess, LocalLauncher, boot_time
from skerry_regions.process.log_files import tail
from skerry_regions.process.pages import is_healthy
from skerry_regions.process.socket_paths import SocketPaths
from skerry_regions.process.spawning import HeldListener
from skerry_regions.registry import Member, Registry, RegistryUnavailable

HEALTH_SECONDS = 2.0  # between two checks of one process
SOCKETS = ("node", "kv", "control", "gateway", "metrics")


@dataclass(slots=True)
class ProcessHealth:
    """The last answer of a process, and the tasks that poll it and read its reports."""

    healthy_at: float
    tasks: list[asyncio.Task[None]]
    is_followed: bool = False  # else a control plane before us has started it


class ProcessLauncher:
    """See `Launcher`. Lives on one event loop; one per home."""

    def __init__(
        self,
        home: Path,
        registry: Registry,
        *,
        term: int,
        cores: int,
        environ: Mapping[str, str],
        changed: Callable[[], None],
        progress: Progress = lambda what, share: None,
        host: str = "",
        port: int = 0,
        advertise: str = "",
    ) -> None:
        """`changed` is called on the loop when a process has ended, `progress` with what it reports
        before it is ready for the first time. Nodes listen at `host`, if given, at free ports, or
        one alone at `port` and the next, and are reached at `advertise`. Adopts what runs.

        Raises Deposed where a control plane of a later `term` launches.
        """
        self._files = LaunchFolder.of_control(home)
        self._sockets = SocketPaths.of(home)
        self._registry = registry
        self._programs = LaunchPrograms(
            home=home,
            files=self._files,
            sockets=self._sockets,
            cores=cores,
            environ=dict(environ) | {"SKERRY_HOME": str(home)},
            host=host,
            port=port,
            advertise=advertise,
        )
        self._changed = changed
        self._progress = progress
        self._ended: list[Ended] = []
        self._members: dict[str, Member] = {}
        self._launcher = LocalLauncher(self._files, term, ended=self._has_ended)
        self._listeners = EdgeListeners(self._records)
        self._health = {id: self._watched(process) for id, process in self._launcher.list().items()}
        self._sockets.keep((id, kind) for id in self._health for kind in SOCKETS)
        self._write_neighbours()

    def claim(self, term: int) -> None:
        """Launch for a control plane of this term. Raises Deposed, or OSError."""
        self._launcher.claim(term)

    @property
    def has_adopted(self) -> bool:
        """Return whether something runs that was started before us."""
        return not all(health.is_followed for health in self._health.values())

    async def list(self) -> Observation:
        with contextlib.suppress(RegistryUnavailable):  # what was read last stands
            members = await asyncio.to_thread(self._registry.members)
            self._members = {member.id: member for member in members}
        processes = dict(self._launcher.list())
        running = {id: self._running(process) for id, process in processes.items()}
        ended, self._ended = tuple(self._ended), []
        return Observation(running, ended, tuple(self._members.values()))

    async def start(self, launch: Launch) -> int:
        try:
            listener = None
            if isinstance(launch.settings, EdgeSettings):
                listener = await self._listeners.take(launch, launch.settings.host)
            return self._start(launch, listener)
        except OSError as error:
            raise LaunchFailed(f"{launch.id} cannot be started: {error}") from None

    async def drain(self, id: str, *, patiently: bool) -> None:
        process = self._launcher.list().get(id)
        is_patient_edge = patiently and process is not None and process.record.kind == "edge"
        self._launcher.drain(id, Signals.SIGUSR2 if is_patient_edge else Signals.SIGTERM)
        if process is not None:
            self._listeners.let_go_of_unserved(process.record.owner)

    async def stop(self, id: str) -> None:
        self._launcher.stop(id)

    async def close(self) -> None:
        """Let go of what runs; it goes on."""
        self._listeners.close()
        self._launcher.close()
        await cancel_tasks(*(task for health in self._health.values() for task in health.tasks))
        with contextlib.suppress(OSError):  # what runs on uses it
            self._sockets.root.rmdir()

    # --- what runs -------------------------------------------------------------------------------

    def _running(self, process: LaunchedProcess) -> RunningProcess:
        record, now, health = process.record, boot_time(), self._health[process.record.id]
        member = self._members.get(record.id)
        if member is not None and member.pid != process.pid:
            member = None
        if member is not None and member.state == "draining" and record.draining_since is None:
            record = replace(record, draining_since=now)  # by its operator's word
        if member is not None and member.state == "ready" and not record.was_ready:
            health.healthy_at = now
            record = replace(record, was_ready=True)
        if record != process.record:
            self._launcher.note(process, record)
        return judged(record, process.pid, member, now, silence=now - health.healthy_at)

    def _watched(self, process: LaunchedProcess) -> ProcessHealth:
        watch = asyncio.create_task(self._watch(process), name=f"health of {process.record.id}")
        return ProcessHealth(boot_time(), [watch])

    async def _follow(self, process: LaunchedProcess, lifeline: socket.socket) -> None:
        """Take in what it reports while it starts; a successor of ours has its health alone."""
        async for report in reports(lifeline):
            if "ready" not in report:
                self._progress(f"{process.record.id}: {report['what']}", report["share"])
            elif (health := self._health.get(process.record.id)) is not None:
                health.healthy_at = boot_time()
                self._launcher.note(process, replace(process.record, was_ready=True))
                self._changed()

    async def _watch(self, process: LaunchedProcess) -> None:
        """Poll how it is, as long as it runs."""
        if process.record.kind in SILENT:
            return
        address = Address.parse(process.record.control)
        while True:
            await asyncio.sleep(HEALTH_SECONDS)
            if await is_healthy(address, tls=process.record.tls):
                health = self._health[process.record.id]
                health.healthy_at = boot_time()
                if not health.is_followed and not process.record.was_ready:
                    self._launcher.note(process, replace(process.record, was_ready=True))

    def _has_ended(self, process: LaunchedProcess) -> None:
        record = process.record
        for task in self._health.pop(record.id).tasks:
            task.cancel()
        for kind in SOCKETS:
            self._sockets.path(record.id, kind).unlink(missing_ok=True)
        self._write_neighbours()
        if record.kind == "edge" and record.draining_since is None:
            self._listeners.hold(record)
        log = self._programs.log(record.id)
        has_drained = record.was_ready and process.returncode == 0  # its operator said so
        self._ended.append(
            Ended(
                id=record.id,
                owner=record.owner,
                asked=record.draining_since is not None or has_drained,
                ran_seconds=process.seconds,
                status=process.returncode,
                was_ready=record.was_ready,
                log=str(log),
                last_words=tail(log),
            )
        )
        self._changed()

    # --- starting --------------------------------------------------------------------------------

    def _start(self, launch: Launch, listener: HeldListener | None) -> int:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process, is_new = self._launcher.start(
                self._programs.record(launch, listener),
                lambda: self._programs.program(launch, listener, theirs.fileno()),
            )
            lifeline = ours.dup()
        if is_new:
            health = self._health[launch.id] = self._watched(process)
            health.is_followed = True
            following = self._follow(process, lifeline)
            health.tasks.append(asyncio.create_task(following, name=f"reports of {launch.id}"))
            self._write_neighbours()
        else:
            lifeline.close()
        return 0 if listener is None else Address.parse(process.record.address).port

    def _records(self) -> Sequence[LaunchRecord]:
        return [process.record for process in self._launcher.list().values()]

    def _write_neighbours(self) -> None:
        write_neighbours(self._files, self._sockets, self._records())
