"""The control plane's launcher for its own machine: what a launch says, as a process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import Signals

import msgspec
from msgspec.structs import replace

from skerry_regions.address import Address
from skerry_regions.control.planning.launcher import (
    SILENT,
    DnsSettings,
    EdgeSettings,
    Ended,
    Launch,
    LaunchFailed,
    NodeSettings,
    Observation,
    RelaySettings,
    RunningProcess,
    fingerprint,
)
from skerry_regions.control.reconcile.commands import dns_command, edge_command, node_command
from skerry_regions.control.reconcile.launched import judged
from skerry_regions.process.emulation import RelayPlan, relay, relays_command
from skerry_regions.process.launch_folder import LaunchedKind, LaunchFolder, LaunchRecord
from skerry_regions.process.local_launcher import (
    LaunchedProcess,
    LocalLauncher,
    Program,
    boot_time,
)
from skerry_regions.process.pages import is_healthy
from skerry_regions.process.socket_paths import SocketPaths
from skerry_regions.process.spawning import HeldListener, bound, resolved
from skerry_regions.process.supervisor import tail
from skerry_regions.registry import Member, Registry, RegistryUnavailable

HEALTH_SECONDS = 2.0  # between two checks of one process
HOLD_SECONDS = 30.0  # that callers of an edge which died wait for the next
SOCKETS = ("node", "kv", "control", "gateway", "metrics")
RELAYED = {"node": ("node", "kv"), "edge": ("gateway",)}  # that other regions reach


@dataclass(slots=True)
class ProcessHealth:
    """When a process answered last, and the task that polls it."""

    healthy_at: float
    watch: asyncio.Task[None]


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
    ) -> None:
        """`changed` is called on the loop when a process has ended. Adopts what runs.

        Raises Deposed where a control plane of a later `term` launches.
        """
        self._home = home
        self._files = LaunchFolder.of_control(home)
        self._sockets = SocketPaths.of(home)
        self._registry = registry
        self._cores = cores
        self._environ = dict(environ) | {"SKERRY_HOME": str(home)}
        self._changed = changed
        self._ended: list[Ended] = []
        self._members: dict[str, Member] = {}
        fleet = LaunchFolder.of_fleet(home)
        self._launcher = LocalLauncher(self._files, term, beside=fleet, ended=self._has_ended)
        self._held: dict[str, HeldListener] = {}  # by owner: where its edges listen
        self._health = {id: self._watched(process) for id, process in self._launcher.list().items()}
        self._sockets.keep((id, kind) for id in self._health for kind in SOCKETS)

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
                host = await asyncio.to_thread(resolved, launch.settings.host)
                listener = self._listener(launch.owner, host, launch.port)
            return self._start(launch, listener)
        except OSError as error:
            raise LaunchFailed(f"{launch.id} cannot be started: {error}") from None

    async def drain(self, id: str, *, patiently: bool) -> None:
        process = self._launcher.list().get(id)
        is_patient_edge = patiently and process is not None and process.record.kind == "edge"
        self._launcher.drain(id, Signals.SIGUSR2 if is_patient_edge else Signals.SIGTERM)
        if process is not None and not self._is_served(process.record.owner):
            self._let_go(process.record.owner)

    async def stop(self, id: str) -> None:
        self._launcher.stop(id)

    async def close(self) -> None:
        """Let go of what runs; it goes on."""
        watches = [health.watch for health in self._health.values()]
        for watch in watches:
            watch.cancel()
        for held in self._held.values():
            held.close()
        self._launcher.close()
        await asyncio.gather(*watches, return_exceptions=True)
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
        return ProcessHealth(boot_time(), watch)

    async def _watch(self, process: LaunchedProcess) -> None:
        """Poll how it is, as long as it runs."""
        if process.record.kind in SILENT:
            return
        address = Address.parse(process.record.control)
        while True:
            await asyncio.sleep(HEALTH_SECONDS)
            if await is_healthy(address, tls=process.record.tls):
                self._health[process.record.id].healthy_at = boot_time()

    def _has_ended(self, process: LaunchedProcess) -> None:
        record = process.record
        self._health.pop(record.id).watch.cancel()
        for kind in SOCKETS:
            self._sockets.path(record.id, kind).unlink(missing_ok=True)
        self._relay()
        if record.kind == "edge" and record.draining_since is None:
            self._hold(record)
        log = self._log(record.id)
        words = tail(log) if log.exists() else ""
        self._ended.append(
            Ended(
                id=record.id,
                owner=record.owner,
                asked=record.draining_since is not None,
                ran_seconds=process.seconds,
                last_words=words.strip().rpartition("\n")[2].strip(),
            )
        )
        self._changed()

    def _is_served(self, edge: str) -> bool:
        """Return whether a process of an edge node runs that is to stay."""
        running = (process.record for process in self._launcher.list().values())
        return any(each.owner == edge and each.draining_since is None for each in running)

    def _hold(self, record: LaunchRecord) -> None:
        """Listen in place of an edge that died: callers wait for the next, if it comes in time."""
        if self._is_served(record.owner):
            return
        address = Address.parse(record.address)  # of one that was adopted there is no socket
        self._held.setdefault(record.owner, HeldListener(address.host, address.port)).listen()

        def give_up() -> None:
            if not self._is_served(record.owner):
                self._let_go(record.owner)

        asyncio.get_running_loop().call_later(HOLD_SECONDS, give_up)

    def _let_go(self, edge: str) -> None:
        """Listen for an edge no more: who does not accept must not be called."""
        if (held := self._held.pop(edge, None)) is not None:
            held.close()

    # --- starting --------------------------------------------------------------------------------

    def _start(self, launch: Launch, listener: HeldListener | None) -> int:
        process, is_new = self._launcher.start(
            self._record(launch, listener), lambda: self._program(launch, listener)
        )
        if is_new:
            self._health[launch.id] = self._watched(process)
            self._relay()
        return 0 if listener is None else Address.parse(process.record.address).port

    def _listener(self, edge: str, host: str, port: int) -> HeldListener:
        """Return where an edge is to listen: with those who wait already, where some may. Raises
        OSError."""
        held = self._held.get(edge)
        if held is None or held.host != host or port not in (0, held.port):
            self._let_go(edge)
            held = self._held[edge] = HeldListener(host, port, bound(host, port))
        return held

    def _relay(self) -> None:
        """Have relays pass on to what runs now, where distances are emulated."""
        records = [process.record for process in self._launcher.list().values()]
        sockets = tuple(
            (self._sockets.address(record.id, kind), record.region)
            for record in records
            for kind in RELAYED.get(record.kind, ())
        )
        for record in records:
            if record.kind == "relays":
                with contextlib.suppress(OSError):  # a full disk: with the next change
                    relay(self._files.path(record.id, "relays"), sockets)

    def _program(self, launch: Launch, listener: HeldListener | None) -> Program:
        return Program(
            command=[*self._command(launch, listener)],
            environ=self._environ,
            log=self._log(launch.id),
            descriptors=[] if listener is None else [listener.fileno()],
        )

    def _log(self, id: str) -> Path:
        return self._home / "logs" / f"{id}.log"

    def _record(self, launch: Launch, listener: HeldListener | None) -> LaunchRecord:
        kind: LaunchedKind
        if listener is not None:
            kind, address, control = "edge", str(listener.address), str(listener.reached)
        elif isinstance(launch.settings, RelaySettings | DnsSettings):
            kind = "relays" if isinstance(launch.settings, RelaySettings) else "dns"
            address = control = ""
        else:
            kind, address = "node", self._sockets.address(launch.id, "node")
            control = self._sockets.address(launch.id, "control")
        return LaunchRecord(
            id=launch.id,
            owner=launch.owner,
            kind=kind,
            region=launch.settings.region,
            fingerprint=fingerprint(launch.settings),
            address=address,
            control=control,
            tls=isinstance(launch.settings, EdgeSettings) and launch.settings.tls is not None,
            started=boot_time(),
        )

    def _command(self, launch: Launch, listener: HeldListener | None) -> Sequence[str]:
        id, settings = launch.id, launch.settings
        match settings:
            case NodeSettings():
                prompts = None
                if settings.system_prompts:
                    prompts = self._files.path(id, "prompts")
                    prompts.write_bytes(msgspec.json.encode(settings.system_prompts))
                return node_command(
                    id,
                    settings,
                    address=partial(self._sockets.address, id),
                    threads=settings.threads or launch.share.threads(self._cores),
                    prompts=prompts,
                )
            case EdgeSettings():
                assert listener is not None
                topology = self._files.path(id, "topology")
                topology.write_bytes(launch.topology)
                gateway = self._sockets.address(id, "gateway")
                command = edge_command(id, settings, gateway=gateway, topology=topology, holds=True)
                return [*command, "--listener-fd", str(listener.fileno())]
            case DnsSettings():
                return dns_command(("--zone", settings.zone), self._sockets.address(id, "metrics"))
            case RelaySettings():
                path = self._files.path(id, "relays")
                path.write_bytes(msgspec.json.encode(RelayPlan(rtts=settings.rtts)))
                return relays_command(path)
