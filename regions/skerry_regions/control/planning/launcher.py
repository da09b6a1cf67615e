"""What a reconciler requests of what starts processes, and what it learns of what runs."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta, Struct

from skerry.runners import FloatsForm, KVForm, RunnerName
from skerry_regions.control.desired.resources import RoleName, RoutingSpec
from skerry_regions.models.problems import LeftOut
from skerry_regions.process.launch_folder import Slot
from skerry_regions.registry import Member
from skerry_regions.spec_types import ConsoleMode, LauncherName, PlacementRule

RELAYS = "~relays"  # owner of the relays of emulated distances: no resource is called so
DNS = "~dns-"  # and of a zone's server, before the zone's name
SILENT: tuple[ProcessKind, ...] = ("relays", "dns")  # in no registry, without health checks
Name = Annotated[str, Meta(max_length=256)]
ProcessKind = Literal["node", "edge", "relays", "dns"]
ProcessState = Literal["starting", "ready", "draining", "failed"]


class NodeSettings(Struct, frozen=True, kw_only=True, tag="node", omit_defaults=True):
    """All that decides what a node is. Another value is another node; a field to come changes none
    without it."""

    region: Name
    residency: Name = "global"
    role: RoleName
    model: Name  # catalog id
    runner: RunnerName
    threads: int | None = None
    kv_blocks: int | None = None
    streams: int | None = None
    step_tokens: int | None = None
    draft_tokens: int | None = None
    file_tier: str | None = None
    pin_share: float | None = None
    weights: FloatsForm | None = None
    kv: KVForm | None = None
    tensor: int | None = None
    pipeline: int | None = None
    stages: tuple[Name, ...] = ()
    system_prompts: tuple[str, ...] = ()
    launcher: LauncherName = "local"
    memory: int = 0  # bytes of its host
    gpus: int = 0

    @property
    def is_hosted(self) -> bool:
        """Return whether it runs on another machine, which installs its model by itself."""
        return self.launcher != "local"


class EdgeSettings(Struct, frozen=True, kw_only=True, tag="edge", omit_defaults=True):
    """All that decides what an edge is. A field to come changes no edge without it."""

    region: Name
    residency: Name = "global"
    host: Name
    hosts: tuple[str, ...] = ()  # that it answers to; none: to all
    tls: tuple[str, str] | None = None  # files of its certificate and key
    public_url: str | None = None
    placement: PlacementRule = "cost"
    console: ConsoleMode = "loopback"
    models: tuple[str, ...]  # catalog ids
    left_out: tuple[LeftOut, ...] = ()  # what it says of others that it should offer
    routing: RoutingSpec | None = None  # None: as where nothing is written of it


class RelaySettings(Struct, frozen=True, kw_only=True, tag="relays"):
    """Distances that are emulated: seconds of a round trip between each two regions."""

    region: str = ""  # of all
    rtts: tuple[tuple[str, str, float], ...]


class DnsSettings(Struct, frozen=True, kw_only=True, tag="dns"):
    """The server of a zone, whose contents it follows by itself."""

    region: str = ""  # of all
    zone: str
    host: str
    port: int


Settings = NodeSettings | EdgeSettings | RelaySettings | DnsSettings


def fingerprint(settings: Settings) -> str:
    """Return what is equal for equal settings, in every process."""
    return hashlib.blake2b(msgspec.json.encode(settings), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class CoreShare:
    """How nodes share a machine: those that say how many threads they have take them first."""

    taken: int = 0  # threads
    num_sharing: int = 1  # nodes that share the rest

    @classmethod
    def of(cls, nodes: Iterable[tuple[int | None, int]]) -> CoreShare:
        """Return that of nodes, as threads that each of so many has; None: its share."""
        counted = [*nodes]
        return cls(
            sum(threads * count for threads, count in counted if threads is not None),
            max(1, sum(count for threads, count in counted if threads is None)),
        )

    def threads(self, cores: int) -> int:
        """Return those of one: at least one, also where nodes outnumber cores."""
        return max(1, (cores - self.taken) // self.num_sharing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One process to start."""

    id: str
    owner: str  # id of its pool or edge node; `RELAYS`, or `DNS` and a zone
    settings: Settings
    port: int = 0  # of an edge; 0: any free one …
    former_port: int = 0  # … and this, where it is free: it listened there before
    share: CoreShare = CoreShare()  # of a node without threads of its own
    topology: bytes = b""  # of an edge: what it reads of the platform, as a topology file
    incarnation: int = 0  # of a node on a host; 0: its own clock's
    slot: Slot | None = None  # of a node on a host


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProcess:
    """One process that runs, whoever started it.

    It is ready by its own word while it answers health checks, and failed when it was, and is no
    more. Where it says another thing in the registry, that counts.
    """

    id: str
    owner: str
    kind: ProcessKind
    region: str
    fingerprint: str
    pid: int
    state: ProcessState
    seconds: float = 0.0  # in this state
    streams: int = 0
    address: str = ""
    control: str = ""
    incarnation: int = 0  # of a node on a host …
    slot: Slot | None = None  # … and what it has of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One process that ended since the last look. `asked`: its end was requested."""

    id: str
    owner: str
    asked: bool
    ran_seconds: float
    status: int | None = None  # -9: by SIGKILL; only its parent knows
    was_ready: bool = True
    log: str = ""
    last_words: str = ""  # the end of its log, in lines
    lost: str = ""  # why it is taken for ended, where none saw its end

    @property
    def sentence(self) -> str:
        """Return what happened, to one that ended unasked."""
        if self.lost:
            return f"{self.id} is lost: {self.lost}"
        told = f"{self.id} ended after {self.ran_seconds:.0f} s"
        words = self.last_words.strip().rpartition("\n")[2].strip()
        return f"{told}; its log ends with: {words}" if words else told


def never_started(launch: Launch, why: str) -> Ended:
    """Return the end of a process that could not be started."""
    return Ended(
        id=launch.id, owner=launch.owner, asked=False, ran_seconds=0.0, was_ready=False, lost=why
    )


@dataclass(frozen=True, slots=True)
class Observation:
    """What runs now, and what ended since the last look."""

    running: Mapping[str, RunningProcess] = field(default_factory=dict[str, RunningProcess])
    ended: tuple[Ended, ...] = ()
    members: tuple[Member, ...] = ()  # as they describe themselves, of all machines

    def without_fingerprint(self, starts: Collection[tuple[str, int]]) -> Observation:
        """Return it with processes, by id and pid, that are made of nothing that is wanted."""
        if not starts:
            return self
        running = {
            id: replace(process, fingerprint="") if (id, process.pid) in starts else process
            for id, process in self.running.items()
        }
        return replace(self, running=running)


class LaunchFailed(Exception):
    """A process cannot be started; the message says why."""


class Launcher(Protocol):
    """Starts and stops processes by name. What it started outlives it, and is found again by the
    next, whose term is higher: who was replaced is refused (`Deposed`)."""

    async def list(self) -> Observation:
        """Return what runs now, and what ended since the last call."""
        ...

    async def start(self, launch: Launch) -> int:
        """Start it; an edge's port. Of an id that runs: nothing. Raises LaunchFailed."""
        ...

    async def drain(self, id: str, *, patiently: bool) -> None:
        """Let it take nothing new, and end when its streams have. Of none such: nothing.

        Nodes hand back what takes too long; an edge has none to hand it to, and breaks it off
        after half a minute unless `patiently`.
        """
        ...

    async def stop(self, id: str) -> None:
        """End it at once."""
        ...


def starting(launch: Launch, seconds: float = 0.0) -> RunningProcess:
    """Return a node that has been started for so long, and has not been reported yet."""
    return RunningProcess(
        id=launch.id,
        owner=launch.owner,
        kind="node",
        region=launch.settings.region,
        fingerprint=fingerprint(launch.settings),
        pid=0,
        state="starting",
        seconds=seconds,
        incarnation=launch.incarnation,
        slot=launch.slot,
    )
