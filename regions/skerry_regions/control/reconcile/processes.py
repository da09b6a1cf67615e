"""The launcher of one machine: nodes and edges as processes that outlive the control plane.

Each process holds a lock on a file of its own from before its first instruction until its end,
however it ends. So whoever looks at the folder later knows what runs, a second process of the same
id cannot be started, and a recycled pid deceives nobody.

    SKERRY_HOME/run/launched/ID.lock    held by the process
                             ID.json    what it was launched as (`LaunchRecord`)
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import sys
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
    Running,
    fingerprint,
)
from skerry_regions.control.reconcile.commands import edge_command, node_command
from skerry_regions.control.reconcile.launched import LaunchRecord, judged
from skerry_regions.control.reconcile.process_lock import holder, locked
from skerry_regions.control.reconcile.socket_paths import SocketPaths
from skerry_regions.process.health import is_healthy
from skerry_regions.process.supervisor import MAX_LOG_BYTES, tail
from skerry_regions.registry import Member, Registry, RegistryUnavailable

HEALTH_SECONDS = 2.0  # between two checks of one process

FILES = ("json", "draft", "prompts", "topology", "lock")  # the lock last: it tells of the others
SOCKETS = ("node", "kv", "control", "gateway")

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Known:
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
        self._folder = home / "run" / "launched"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sockets = SocketPaths.of(home)
        self._registry = registry
        self._cores = cores
        self._environ = dict(environ) | {"SKERRY_HOME": str(home)}
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, Known] = {}
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
        for folder in (self._folder, self._sockets.root):
            with contextlib.suppress(OSError):  # in use by what runs on
                folder.rmdir()

    # --- what runs -------------------------------------------------------------------------------

    def _running(self, known: Known) -> Running:
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

    async def _watch(self, known: Known) -> None:
        """Ask how it is, as long as it runs."""
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
            lock = locked(self._path(launch.id, "lock"))
            stack.callback(os.close, lock)  # ours; the process keeps its own
            command = self._command(launch, listener)
            record = self._record(launch, listener)
            self._write(record)
            inherited = [lock] if listener is None else [lock, listener.fileno()]
            pid = self._spawn(launch.id, command, inherited)
            self._know(record, pid)
            return 0 if listener is None else int(listener.getsockname()[1])

    def _spawn(self, id: str, command: list[str], inherited: list[int]) -> int:
        """In a session of its own, with its log. It outlives us."""
        log = self._home / "logs" / f"{id}.log"
        log.parent.mkdir(mode=0o700, exist_ok=True)
        if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
            log.unlink()
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            *((os.POSIX_SPAWN_DUP2, number, number) for number in inherited),
        ]
        arguments = [sys.executable, "-m", "skerry", *command]
        return os.posix_spawn(
            sys.executable, arguments, self._environ, file_actions=files, setsid=True
        )

    def _record(self, launch: Launch, listener: socket.socket | None) -> LaunchRecord:
        if listener is None:
            address, control = (self._address(launch.id, kind) for kind in ("node", "control"))
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
                    prompts = self._path(launch.id, "prompts")
                    prompts.write_bytes(msgspec.json.encode(launch.settings.system_prompts))
                return node_command(
                    launch.id,
                    launch.settings,
                    address=partial(self._address, launch.id),
                    threads=launch.settings.threads or max(1, self._cores // launch.num_sharing),
                    prompts=prompts,
                )
            case EdgeSettings():
                assert listener is not None
                topology = self._path(launch.id, "topology")
                topology.write_bytes(launch.topology)
                return edge_command(
                    launch.id,
                    launch.settings,
                    gateway=self._address(launch.id, "gateway"),
                    listener=listener.fileno(),
                    topology=topology,
                )

    def _address(self, id: str, kind: str) -> str:
        return f"unix:{self._sockets.path(id, kind)}"

    def _path(self, id: str, kind: str) -> Path:
        return self._folder / f"{id}.{kind}"

    def _write(self, record: LaunchRecord) -> None:
        """Replace it whole: we may die at any moment."""
        draft = self._path(record.id, "draft")
        draft.write_bytes(msgspec.json.encode(record))
        os.replace(draft, self._path(record.id, "json"))

    # --- knowing ---------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Find what an earlier control plane started, and clear away what has ended since."""
        for path in sorted(self._folder.glob("*.lock")):
            try:
                lock = locked(path)
            except BlockingIOError:
                self._adopt_one(path)
                continue
            os.close(lock)
            self._forget_files(path.stem)

    def _adopt_one(self, lock: Path) -> None:
        path = self._path(lock.stem, "json")
        try:
            record = msgspec.json.decode(path.read_bytes(), type=LaunchRecord)
        except (OSError, msgspec.DecodeError) as error:
            logger.error("a process holds %s, but what it is cannot be read: %s", lock, error)
            return
        pid = holder(lock)
        if pid is None:  # it ended this moment
            self._forget_files(lock.stem)
            return
        logger.info("adopted %s, process %d", record.id, pid)
        self._know(record, pid)

    def _know(self, record: LaunchRecord, pid: int) -> None:
        pidfd = os.pidfd_open(pid)
        known = Known(record, pid, pidfd, healthy_at=_now())
        known.watch = asyncio.create_task(self._watch(known), name=f"health of {record.id}")
        self._known[record.id] = known
        self._loop.add_reader(pidfd, self._has_ended, known)

    def _note(self, known: Known, record: LaunchRecord) -> None:
        """Change its record, in memory and on disk."""
        known.record = record
        with contextlib.suppress(OSError):  # a full disk: the next control plane knows less
            self._write(record)

    def _has_ended(self, known: Known) -> None:
        record = known.record
        self._let_go(known)
        with contextlib.suppress(ChildProcessError):  # adopted: its parent has died
            os.waitpid(known.pid, os.WNOHANG)
        self._forget_files(record.id)
        log = self._home / "logs" / f"{record.id}.log"
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

    def _let_go(self, known: Known) -> None:
        self._known.pop(known.record.id, None)
        self._loop.remove_reader(known.pidfd)
        os.close(known.pidfd)
        known.watch.cancel()

    def _forget_files(self, id: str) -> None:
        for kind in FILES:
            self._path(id, kind).unlink(missing_ok=True)
        for kind in SOCKETS:
            self._sockets.path(id, kind).unlink(missing_ok=True)


def bound(host: str, port: int) -> socket.socket:
    """A socket for an edge to listen on. An old and a new one may share its port for a while."""
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def _signal(known: Known, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(known.pidfd, number)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
