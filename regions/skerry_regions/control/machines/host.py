"""A host as the control plane knows it: what it offers, what runs there, and its orders."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.machines.book import Machine
from skerry_regions.control.planning.launcher import (
    Launch,
    NodeSettings,
    RunningProcess,
    fingerprint,
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

    def room(self, pool: str) -> HostRoom:
        processes = self.processes()
        taken = [each.slot for each in processes if each.slot is not None]
        num_same = sum(each.owner == pool for each in processes)
        return HostRoom.of(self.machine.id, self.offers, taken, num_same)


def starting(launch: Launch) -> RunningProcess:
    """Return a node that has not been reported yet."""
    return RunningProcess(
        id=launch.id,
        owner=launch.owner,
        kind="node",
        region=launch.settings.region,
        fingerprint=fingerprint(launch.settings),
        pid=0,
        state="starting",
        incarnation=launch.incarnation,
        slot=launch.slot,
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
