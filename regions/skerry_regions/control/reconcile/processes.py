"""The launcher of one machine: nodes and edges as processes that outlive the control plane.

Each process holds a lock on a file of its own from before its first instruction until its end,
however it ends. So whoever looks at the folder later knows what runs, a second process of the same
id cannot be started, and a recycled pid is taken for none of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from skerry_regions.address import Address
from skerry_regions.control.planning.launcher import (
    EdgeSettings,
    Ended,
    Launch,
    LaunchFailed,
    NodeSettings,
    Observation,
    RunningProcess,
    fingerprint,
)
from skerry_regions.control.reconcile.commands import edge_command, node_command
from skerry_regions.control.reconcile.launch_folder import LaunchFolder
from skerry_regions.control.reconcile.launched import LaunchRecord, judged
from skerry_regions.control.reconcile.process_lock import holder, locked
from skerry_regions.control.reconcile.spawning import bound, spawn
from skerry_regions.process.health import is_healthy
from skerry_regions.process.supervisor import tail
from skerry_regions.registry import Member, Registry, RegistryUnavailable

HEALTH_SECONDS = 2.0  # between two checks of one process

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class KnownProcess:
    """One process that runs."""

    record: LaunchRecord
    pid: int
    pidfd: int
    healthy_at: float
    watch: asyncio.Task[None] = field(init=False)


class ProcessLauncher:
    """See `Launcher`. Lives on one event loop; one per home."""

    def __init__(
        self,
        home: Path,
        registry: Registry,
        *,
        cores: int,
        environ: Mapping[str, str],
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called on the loop when a process has ended. Adopts what runs."""
        self._home = home
        self._files = LaunchFolder(home)
        self._registry = registry
        self._cores = cores
        self._environ = dict(environ) | {"SKERRY_HOME": str(home)}
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, KnownProcess] = {}
        self._ended: list[Ended] = []
        self._members: dict[str, Member] = {}
        self._adopt()

    async def observe(self) -> Observation:
        with contextlib.suppress(RegistryUnavailable):  # what was read last stands
            members = await asyncio.to_thread(self._registry.members)
            self._members = {member.id: member for member in members}
        running = {id: self._running(known) for id, known in list(self._known.items())}
        ended, self._ended = tuple(self._ended), []
        return Observation(running, ended, tuple(self._members.values()))

    async def start(self, launch: Launch) -> int:
        if launch.id in self._known:
            raise LaunchFailed(f"{launch.id} runs already")
        try:
            return self._start(launch)
        except OSError as error:
            raise LaunchFailed(f"{launch.id} cannot be started: {error}") from None

    async def drain(self, id: str, *, patiently: bool) -> None:
        known = self._known.get(id)
        if known is None:
            return
        if known.record.draining_since is None:
            self._note(known, replace(known.record, draining_since=_now()))
        is_patient_edge = patiently and known.record.kind == "edge"
        _signal(known, signal.SIGUSR2 if is_patient_edge else signal.SIGTERM)

    async def kill(self, id: str) -> None:
        if (known := self._known.get(id)) is not None:
            _signal(known, signal.SIGKILL)

    async def close(self) -> None:
        """Let go of what runs; it goes on."""
        watches = [known.watch for known in self._known.values()]
        for known in list(self._known.values()):
            self._let_go(known)
        await asyncio.gather(*watches, return_exceptions=True)
        self._files.close()

    # --- what runs -------------------------------------------------------------------------------

    def _running(self, known: KnownProcess) -> RunningProcess:
        record, now = known.record, _now()
        member = self._members.get(record.id)
        if member is not None and member.pid != known.pid:
            member = None
        if member is not None and member.state == "draining" and record.draining_since is None:
            self._note(known, replace(record, draining_since=now))  # by its operator's word
        if member is not None and member.state == "ready" and not record.was_ready:
            known.healthy_at = now
            self._note(known, replace(known.record, was_ready=True))
        return judged(known.record, known.pid, member, now, silence=now - known.healthy_at)

    async def _watch(self, known: KnownProcess) -> None:
        """Poll how it is, as long as it runs."""
        address = Address.parse(known.record.control)
        while True:
            await asyncio.sleep(HEALTH_SECONDS)
            if await is_healthy(address):
                known.healthy_at = _now()

    # --- starting --------------------------------------------------------------------------------

    def _start(self, launch: Launch) -> int:
        with contextlib.ExitStack() as stack:
            listener = None
            if isinstance(launch.settings, EdgeSettings):
                listener = stack.enter_context(bound(launch.settings.host, launch.port))
            lock = locked(self._files.path(launch.id, "lock"))
            stack.callback(os.close, lock)  # ours; the process keeps its own
            command = self._command(launch, listener)
            record = self._record(launch, listener)
            self._files.write(record)
            inherited = [lock] if listener is None else [lock, listener.fileno()]
            pid = spawn(command, self._environ, self._log(launch.id), inherited)
            self._know(record, pid)
            return 0 if listener is None else int(listener.getsockname()[1])

    def _log(self, id: str) -> Path:
        return self._home / "logs" / f"{id}.log"

    def _record(self, launch: Launch, listener: socket.socket | None) -> LaunchRecord:
        if listener is None:
            address, control = (
                self._files.address(launch.id, kind) for kind in ("node", "control")
            )
        else:
            host, port = listener.getsockname()[:2]
            address = control = str(Address(host=host, port=port))
        return LaunchRecord(
            id=launch.id,
            owner=launch.owner,
            kind="node" if listener is None else "edge",
            region=launch.settings.region,
            fingerprint=fingerprint(launch.settings),
            address=address,
            control=control,
            started=_now(),
        )

    def _command(self, launch: Launch, listener: socket.socket | None) -> list[str]:
        match launch.settings:
            case NodeSettings():
                prompts = None
                if launch.settings.system_prompts:
                    prompts = self._files.path(launch.id, "prompts")
                    prompts.write_bytes(msgspec.json.encode(launch.settings.system_prompts))
                return node_command(
                    launch.id,
                    launch.settings,
                    address=partial(self._files.address, launch.id),
                    threads=launch.settings.threads or max(1, self._cores // launch.num_sharing),
                    prompts=prompts,
                )
            case EdgeSettings():
                assert listener is not None
                topology = self._files.path(launch.id, "topology")
                topology.write_bytes(launch.topology)
                return edge_command(
                    launch.id,
                    launch.settings,
                    gateway=self._files.address(launch.id, "gateway"),
                    listener=listener.fileno(),
                    topology=topology,
                )

    # --- knowing ---------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Find what an earlier control plane started, and clear away what has ended since."""
        for path in self._files.locks():
            try:
                lock = locked(path)
            except BlockingIOError:
                self._adopt_one(path)
                continue
            os.close(lock)
            self._files.remove(path.stem)

    def _adopt_one(self, lock: Path) -> None:
        path = self._files.path(lock.stem, "json")
        try:
            record = msgspec.json.decode(path.read_bytes(), type=LaunchRecord)
        except (OSError, msgspec.DecodeError) as error:
            logger.error("a process holds %s, but what it is cannot be read: %s", lock, error)
            return
        pid = holder(lock)
        if pid is None:  # it ended this moment
            self._files.remove(lock.stem)
            return
        logger.info("adopted %s, process %d", record.id, pid)
        self._know(record, pid)

    def _know(self, record: LaunchRecord, pid: int) -> None:
        pidfd = os.pidfd_open(pid)
        known = KnownProcess(record, pid, pidfd, healthy_at=_now())
        known.watch = asyncio.create_task(self._watch(known), name=f"health of {record.id}")
        self._known[record.id] = known
        self._loop.add_reader(pidfd, self._has_ended, known)

    def _note(self, known: KnownProcess, record: LaunchRecord) -> None:
        """Change its record, in memory and on disk."""
        known.record = record
        with contextlib.suppress(OSError):  # a full disk: the next control plane knows less
            self._files.write(record)

    def _has_ended(self, known: KnownProcess) -> None:
        record = known.record
        self._let_go(known)
        with contextlib.suppress(ChildProcessError):  # adopted: its parent has died
            os.waitpid(known.pid, os.WNOHANG)
        self._files.remove(record.id)
        log = self._log(record.id)
        words = tail(log) if log.exists() else ""
        self._ended.append(
            Ended(
                id=record.id,
                owner=record.owner,
                asked=record.draining_since is not None,
                ran_seconds=_now() - record.started,
                last_words=words.strip().rpartition("\n")[2].strip(),
            )
        )
        self._changed()

    def _let_go(self, known: KnownProcess) -> None:
        self._known.pop(known.record.id, None)
        self._loop.remove_reader(known.pidfd)
        os.close(known.pidfd)
        known.watch.cancel()


def _signal(known: KnownProcess, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(known.pidfd, number)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
