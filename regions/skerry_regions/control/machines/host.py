"""A host as the control plane knows it: what it offers, what runs there, and its orders."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.desired.views import rfc3339
from skerry_regions.control.machines.book import Machine
from skerry_regions.control.machines.messages import Kind
from skerry_regions.control.planning.launcher import (
    Launch,
    NodeSettings,
    RunningProcess,
    starting,
)
from skerry_regions.control.planning.placing import HostRoom, pod_name
from skerry_regions.process.launch_folder import Slot


@dataclass(slots=True)
class Host:
    """A machine that reports, and what it is to do."""

    machine: Machine
    offers: Slot
    heard_at: float
    is_leaving: bool = False
    running: dict[str, RunningProcess] = field(default_factory=dict[str, RunningProcess])
    launches: dict[str, Launch] = field(default_factory=dict[str, Launch])  # not reported yet
    drains: set[str] = field(default_factory=set[str])
    stops: set[str] = field(default_factory=set[str])
    idle_since: float | None = None  # that it has had no node, as far as one has looked
    models: set[str] = field(default_factory=set[str])  # that it was ordered to run

    def processes(self) -> list[RunningProcess]:
        """Return what runs there, and what is to. Of a host that leaves, as made of nothing that is
        wanted: others are started elsewhere first."""
        found = [
            *map(self._ordered, self.running.values()),
            *map(starting, self.launches.values()),
        ]
        if self.is_leaving:
            return [dataclasses.replace(each, fingerprint="") for each in found]
        return found

    def _ordered(self, process: RunningProcess) -> RunningProcess:
        """Return a process as it is to be, so that nothing is ordered at each look again."""
        if process.id not in self.drains:
            return process
        return dataclasses.replace(process, state="draining", seconds=0.0)

    def slots(self) -> list[Slot]:
        """Return what is taken of it."""
        return [each.slot for each in self.processes() if each.slot is not None]

    def room(self, pool: str) -> HostRoom:
        num_same = sum(each.owner == pool for each in self.processes())
        return HostRoom.of(
            self.machine.id, self.offers, self.slots(), num_same, of_pool=self.machine.pool
        )


def is_of(process: RunningProcess, machine: Machine, desired: Desired) -> bool:
    """Return whether it is a node that may run on this host."""
    pool = desired.pools().get(process.owner)
    return (
        process.kind == "node"
        and process.slot is not None
        and process.id.rpartition("-")[0] == process.owner
        and process.id.rpartition("-")[2].isdecimal()
        and machine.pool in ("", process.owner)
        and pool is not None
        and pool.region == machine.region == process.region
    )


def may_run(machine: Machine, launch: Launch) -> bool:
    """Return whether a host is for such nodes: of its pool, if it has one, and of its own number,
    if it is a pod."""
    settings = launch.settings
    assert isinstance(settings, NodeSettings)
    if settings.launcher == "kubernetes" and machine.hostname != pod_name(launch.id):
        return False
    is_of_pool = machine.pool == launch.owner
    return machine.region == settings.region and (
        is_of_pool or (not machine.pool and settings.launcher == "machines")
    )


# --- as it is shown ----------------------------------------------------------------------------


class MachineSlots(Struct, frozen=True, kw_only=True):
    """What a host offers, or its nodes have of it."""

    cpus: int
    memory: int  # bytes
    gpus: int  # how many


class MachineView(Struct, frozen=True, kw_only=True):
    """A machine as it is shown. What runs on it is among the nodes, by the same id."""

    id: str
    kind: Kind
    pool: str | None
    region: str
    hostname: str
    version: str
    join_token: str  # id of the one that it joined with
    joined_at: str  # RFC 3339, UTC
    certificate_until: str
    revoked_at: str | None
    offers: MachineSlots | None = None  # of a host that reports …
    used: MachineSlots | None = None  # … and what its nodes have of it
    num_nodes: int = 0  # of a host


def view(machine: Machine, host: Host | None = None) -> MachineView:
    """Return a machine as it is shown; `host` is what it reports, if it is one that does."""
    shares = [] if host is None else host.slots()
    revoked = machine.revoked_at
    return MachineView(
        id=machine.id,
        kind=machine.kind,
        pool=machine.pool or None,
        region=machine.region,
        hostname=machine.hostname,
        version=machine.version,
        join_token=machine.token,
        joined_at=rfc3339(machine.joined_at),
        certificate_until=rfc3339(machine.not_after),
        revoked_at=None if revoked is None else rfc3339(revoked),
        offers=None if host is None else _counted([host.offers]),
        used=None if host is None else _counted(shares),
        num_nodes=len(shares),
    )


def _counted(slots: Sequence[Slot]) -> MachineSlots:
    return MachineSlots(
        cpus=sum(each.cpus for each in slots),
        memory=sum(each.memory for each in slots),
        gpus=sum(len(each.gpus) for each in slots),
    )
