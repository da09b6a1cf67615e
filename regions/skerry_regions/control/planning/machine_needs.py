"""What a region's hosts lack, and which of them are not needed: for whoever adds machines. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from msgspec import Struct

from skerry_regions.control.planning.launcher import LaunchFailed, NodeSettings
from skerry_regions.control.planning.placing import HostRoom, place
from skerry_regions.control.planning.plan import Group


class LackingNodes(Struct, frozen=True, kw_only=True):
    """Nodes of a pool that no host has room for, and what each of them takes."""

    pool: str
    nodes: int
    cpus: int
    memory: int  # bytes; 0: uncounted
    gpus: int


class MachineNeeds(Struct, frozen=True, kw_only=True):
    """What a region's hosts lack, and who of them has had no node for long."""

    lacking: tuple[LackingNodes, ...] = ()
    idle: tuple[str, ...] = ()  # machines' ids

    def __bool__(self) -> bool:
        return bool(self.lacking or self.idle)


def lacking(
    groups: Mapping[str, Group], there: Mapping[str, int], rooms: Mapping[str, Iterable[HostRoom]]
) -> dict[str, tuple[LackingNodes, ...]]:
    """Return by region the nodes on hosts that are wanted and that no host has room for.

    `there` counts the nodes of each pool that run or were ordered; `rooms` are what the hosts of
    each region have left.
    """
    left = {region: {room.id: room for room in found} for region, found in rooms.items()}
    needs = dict[str, tuple[LackingNodes, ...]]()
    for id, group in sorted(groups.items()):
        settings = group.settings
        if not isinstance(settings, NodeSettings) or settings.launcher != "machines":
            continue
        missing = 0 if group.blocked else max(0, group.replicas - there.get(id, 0))
        hosts = left.setdefault(settings.region, {})
        while missing and _takes_one(id, settings, hosts):
            missing -= 1
        if missing:
            lacks = LackingNodes(
                pool=id, nodes=missing, cpus=settings.threads or 1, memory=settings.memory,
                gpus=settings.gpus,
            )  # fmt: skip
            needs[settings.region] = (*needs.get(settings.region, ()), lacks)
    return needs


def _takes_one(pool: str, settings: NodeSettings, hosts: dict[str, HostRoom]) -> bool:
    """Return whether a host takes one more node of a pool, and count it there."""
    try:
        id, slot = place(settings, [each for each in hosts.values() if each.of_pool in ("", pool)])
    except LaunchFailed:
        return False
    room = hosts[id]
    hosts[id] = dataclasses.replace(
        room,
        cpus=room.cpus - slot.cpus,
        memory=room.memory - slot.memory,
        gpus=tuple(gpu for gpu in room.gpus if gpu not in slot.gpus),
        num_same=room.num_same + 1,
    )
    return True
