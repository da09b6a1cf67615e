"""From what is wanted and what runs to what is to be done now. Pure, and level-triggered: the same
picture gives the same actions, however it came about, so a lost or repeated action is made good at
the next look.

    too few    start, lowest free number first
    changed    start one more of the new kind, and when it is ready drain one of the old: at no
               moment are fewer ready than wanted
    too many   drain: who is not ready yet first, then who has the fewest streams
    stuck      kill: who was drained, or has been starting, for too long, or is ill
    the end    edges drain, then nodes, then relays; none is waited for as long as otherwise
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from skerry_regions.control.planning.launcher import (
    SILENT,
    CoreShare,
    Launch,
    NodeSettings,
    RelaySettings,
    RunningProcess,
    Settings,
    fingerprint,
)

SURGE = 1  # processes beyond what is wanted, while they are replaced
DRAIN_SECONDS = 75.0  # more than a node gives its streams and itself
EDGE_DRAIN_SECONDS = 660.0  # more than the longest stream
END_SECONDS = 15.0  # at the end, once the edges are gone: none waits for what still runs
EDGE_END_SECONDS = 35.0  # more than an edge gives its streams to finish
START_SECONDS = 1800.0  # the first start of a large model compiles, and reads hundreds of gigabytes
ILL_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Equal processes: the nodes of a pool, or an edge node's one."""

    id: str
    replicas: int
    settings: Settings
    port: int = 0  # of an edge, and where it listened before: as in `Launch`
    former_port: int = 0
    blocked: str = ""  # why none can be started now
    is_unknown: bool = False  # its model: in no catalog here

    def launch(self, number: int) -> Launch:
        return Launch(
            id=f"{self.id}-{number}",
            owner=self.id,
            settings=self.settings,
            port=self.port,
            former_port=self.former_port,
        )


@dataclass(frozen=True, slots=True)
class StartProcess:
    launch: Launch


@dataclass(frozen=True, slots=True)
class Drain:
    id: str


@dataclass(frozen=True, slots=True)
class Kill:
    id: str
    reason: str


Action = StartProcess | Drain | Kill


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTimeouts:
    """Seconds that a process may take to end, once it drains."""

    edge: float = EDGE_DRAIN_SECONDS
    other: float = DRAIN_SECONDS

    @classmethod
    def at_end(
        cls, running: Mapping[str, RunningProcess], seconds: float, lingering: float
    ) -> DrainTimeouts:
        """Return that of a platform which has been ending for `seconds`.

        Edges that steer are there `lingering` seconds longer, so that clients hear of it. One that
        drained before has as long as the others.
        """
        if any(process.kind == "edge" for process in running.values()):
            return cls(edge=0.0) if seconds > EDGE_END_SECONDS + lingering else cls()
        return cls(other=END_SECONDS)


def plan(
    groups: Mapping[str, Group],
    running: Iterable[RunningProcess],
    held: Collection[str] = frozenset(),
    timeouts: DrainTimeouts = DrainTimeouts(),
) -> list[Action]:
    """Return what to do now. `held` are ids of processes that failed lately: not to be started yet.

    A process whose group is not wanted any more is drained.
    """
    actions: list[Action] = []
    living: dict[str, list[RunningProcess]] = {id: [] for id in groups}
    taken: set[str] = set()
    for process in sorted(running, key=lambda each: each.id):
        taken.add(process.id)
        if reason := _stuck(process, timeouts):
            actions.append(Kill(process.id, reason))
        elif process.state != "draining":
            if process.owner in living:
                living[process.owner].append(process)
            else:
                actions.append(Drain(process.id))
    for id, group in sorted(groups.items()):
        actions += _of_group(group, living[id], taken, held)
    return actions


def core_share(groups: Iterable[Group]) -> CoreShare:
    """Return how the nodes of groups share their machine."""
    return CoreShare.of(
        (group.settings.threads, group.replicas)
        for group in groups
        if isinstance(group.settings, NodeSettings) and not group.settings.is_hosted
    )


def closing(groups: Mapping[str, Group], running: Mapping[str, RunningProcess]) -> dict[str, Group]:
    """Return what is still needed while all is to end, blocked: nodes compute on while an edge has
    streams, and relays pass on what those say."""
    kinds = {process.kind for process in running.values()}
    needed = (NodeSettings, RelaySettings) if "edge" in kinds else (RelaySettings,)
    return {
        id: replace(group, blocked="the platform is ending")
        for id, group in groups.items()
        if isinstance(group.settings, needed) and kinds - {*SILENT}
    }


def _stuck(process: RunningProcess, timeouts: DrainTimeouts) -> str:
    """Return why it must be killed; nothing when it need not be."""
    drain_seconds = timeouts.edge if process.kind == "edge" else timeouts.other
    limits = {
        "draining": (drain_seconds, "it did not end when it was drained"),
        "starting": (START_SECONDS, "it did not become ready"),
        "failed": (ILL_SECONDS, "it answers no health check"),
    }
    seconds, reason = limits.get(process.state, (0.0, ""))
    return reason if reason and process.seconds > seconds else ""


def _of_group(
    group: Group, living: Sequence[RunningProcess], taken: Collection[str], held: Collection[str]
) -> list[Action]:
    wanted = fingerprint(group.settings)
    by_worth = sorted(living, key=_worth_of(group.settings), reverse=True)
    current = [process for process in by_worth if process.fingerprint == wanted]
    old = [process for process in by_worth if process.fingerprint != wanted]
    kept = current[: group.replicas]
    num_ready = sum(process.state == "ready" for process in kept)
    num_needed = max(0, group.replicas - num_ready)  # of the old, until the new are ready
    dispensable = [*current[group.replicas :], *old[num_needed:]]
    actions: list[Action] = [Drain(process.id) for process in dispensable]
    room = group.replicas + (SURGE if old else 0) - len(living)
    missing = min(group.replicas - len(kept), room)
    if missing > 0 and not group.blocked:
        actions += _starts(group, missing, taken, held)
    return actions


def _worth_of(settings: Settings) -> Callable[[RunningProcess], tuple[bool, int, int]]:
    """Return whom to keep: by what it serves, and of equals the lowest number; of nodes on pods,
    which go from the highest, by that alone."""
    is_on_pods = isinstance(settings, NodeSettings) and settings.launcher == "kubernetes"

    def worth(process: RunningProcess) -> tuple[bool, int, int]:
        number = int(process.id.rpartition("-")[2])
        return process.state == "ready", 0 if is_on_pods else process.streams, -number

    return worth


def _starts(
    group: Group, missing: int, taken: Collection[str], held: Collection[str]
) -> list[Action]:
    """Return the lowest free numbers. One that is held is waited for, or a crash loop would
    wander."""
    actions: list[Action] = []
    for number in count():
        if not missing:
            return actions
        launch = group.launch(number)
        if launch.id in taken:
            continue
        missing -= 1
        if launch.id not in held:
            actions.append(StartProcess(launch))
    return actions
