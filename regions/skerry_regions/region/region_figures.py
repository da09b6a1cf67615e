"""What an edge knows of the platform, for others than its router: a number of each region for those
who choose between regions; regions, and the nodes of its own, for people.

Of another region an edge knows its edges' summaries alone, however many nodes stand there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from skerry_regions.geo.region_report import RegionReport
from skerry_regions.region.cluster_state import ClusterState
from skerry_regions.region.directory import Directory
from skerry_regions.registry import Member
from skerry_regions.view import NodeState
from skerry_regions.wire.reports import EngineWork

if TYPE_CHECKING:
    from skerry_regions.region.cost_placer import CostPlacer


def queue_seconds(placer: CostPlacer, models: Iterable[str]) -> float:
    """Prefill work that waits at the median node of this region, of the model that waits most."""
    queues = ([load.queue_seconds for _, load in placer.loads_here(model)] for model in models)
    return max((statistics.median(each) for each in queues if each), default=0.0)


def region_rtts(directory: Directory) -> dict[str, float]:
    """Return seconds to each region and back: to the nearest of its members that are followed."""
    members = directory.members
    least: dict[str, float] = {}
    for id_, seconds in directory.rtts().items():
        region = members[id_].region
        least[region] = min(seconds, least.get(region, seconds))
    return least


def region_report(
    region: str, directory: Directory, placer: CostPlacer, models: Iterable[str]
) -> RegionReport:
    """Return what an edge reports of its region to DNS servers."""
    return RegionReport(
        region=region,
        queue_seconds=queue_seconds(placer, models),
        rtt_seconds=region_rtts(directory),
    )


class SeenNode(Struct, frozen=True, kw_only=True):
    """A node, as its last report has it."""

    id: str
    region: str
    role: str
    model: str
    state: str  # ready, starting, draining, failed, or down: no connection to it
    streams: int = 0
    queue_seconds: float = 0.0  # of prompts that wait or are computed
    work: EngineWork | None = None  # None: it has not said


class SeenRegion(Struct, frozen=True, kw_only=True):
    """A region, as an edge sees it."""

    name: str
    place: tuple[float, float] | None = None  # latitude and longitude, where it is known
    rtt: float | None = None  # seconds to it and back; None: nothing answers
    queue_seconds: float | None = None  # at its median node; None: not reported
    nodes: int = 0  # that take streams
    is_up: bool = True


class SeenFleet(Struct, frozen=True, kw_only=True):
    """Regions and nodes, from where the edge stands."""

    region: str = ""  # the edge's own
    regions: list[SeenRegion] = []
    nodes: list[SeenNode] = []


def seen_fleet(
    directory: Directory, state: ClusterState, places: Mapping[str, tuple[float, float]]
) -> SeenFleet:
    """Return what an edge sees now. `places` are latitudes and longitudes by region."""
    here = state.observations.region
    nodes = [
        _node(member, directory, state)
        for member in directory.members.values()
        if member.kind == "node"
    ]
    rtts = region_rtts(directory)
    names = {here, *places, *(member.region for member in directory.members.values())}
    by_region: dict[str, list[SeenNode]] = {name: [] for name in sorted(names)}
    for node in nodes:
        by_region[node.region].append(node)
    regions = [
        structs.replace(
            _region(name, of_it, directory, state),
            place=places.get(name),
            rtt=rtts.get(name),
        )
        for name, of_it in by_region.items()
    ]
    return SeenFleet(region=here, regions=regions, nodes=nodes)


def _node(member: Member, directory: Directory, state: ClusterState) -> SeenNode:
    link = directory.link(member.id)
    known = state.observations.view(member.model).nodes.get(member.id)
    return SeenNode(
        id=member.id,
        region=member.region,
        role=member.role,
        model=member.model,
        state=member.state if link is not None and link.is_up else "down",
        streams=0 if known is None else known.load.streams,
        queue_seconds=0.0 if known is None else _queue(known),
        work=state.work.get(member.id),
    )


def _region(
    name: str, nodes: list[SeenNode], directory: Directory, state: ClusterState
) -> SeenRegion:
    """Return a region by its nodes, where they are known one by one, else by its edges' words; of
    the edge's own, where there are none, the edge itself is there."""
    if nodes:
        ready = [each for each in nodes if each.state == "ready"]
        queue = statistics.median(each.queue_seconds for each in ready) if ready else None
        return SeenRegion(name=name, queue_seconds=queue, nodes=len(ready), is_up=bool(ready))
    members = directory.members
    edges = [id for id, member in members.items() if member.region == name]
    links = [directory.link(id) for id in edges]
    words = [each for (edge, _), each in state.summarised.items() if edge in edges]
    return SeenRegion(
        name=name,
        queue_seconds=max((each.residual[1] for each in words), default=None),
        nodes=sum({key[1]: each.num_nodes for key, each in state.summarised.items()
                   if key[0] in edges}.values()),
        is_up=name == state.observations.region
        or any(link is not None and link.is_up for link in links),
    )  # fmt: skip


def _queue(node: NodeState) -> float:
    load, speed = node.load, node.speed
    return load.prefill_tokens * speed.per_token + load.prefill_pairs * speed.per_pair
