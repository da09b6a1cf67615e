"""What `skerry status` says of a topology's processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from skerry_cli.home.control import NodeStatus
from skerry_regions.process.supervisor import Supervised
from skerry_regions.registry import Member
from skerry_regions.topology.spec import TopologyPool


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One node of a topology."""

    id: str
    pool: TopologyPool
    model: str  # catalog id


def node_status(
    place: NodePlace, process: Supervised, members: dict[str, Member], control: str
) -> NodeStatus:
    """The supervisor knows whether it lives; the node itself what it does."""
    member = members.get(place.id)
    known = member if member is not None and member.pid == process.pid else None
    draining = process.state == "ready" and known is not None and known.state == "draining"
    return NodeStatus(
        id=place.id,
        pid=process.pid,
        role=place.pool.role,
        region=place.pool.region,
        model=place.model,
        state="draining" if draining else process.state,
        streams=known.streams if known is not None else 0,
        control=control,
    )


def trouble(process: Supervised) -> str:
    """Return what a person should know of a process; nothing when all is well."""
    if not process.restarts and process.state != "failed":
        return ""
    what = f"{process.spec.id}: restarted {process.restarts} times, last exit {process.last_exit}"
    if process.is_crash_loop:
        what += ", in a crash loop"
    return f"{what}; see {process.spec.log}"


def without_edge(nodes: Mapping[str, Supervised], members: Mapping[str, Member]) -> list[str]:
    """Return a note on each node that runs well and that no edge finds."""
    return [
        f"{id} serves no edge: it is ready, and not in the registry (is its disk full?)"
        for id, node in nodes.items()
        if node.state == "ready" and id not in members
    ]
