"""The demand for each autoscaled pool, from what edges and nodes say of themselves. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.planning.autoscaler import PoolDemand
from skerry_regions.control.planning.launcher import NodeSettings, RunningProcess
from skerry_regions.control.planning.plan import Group
from skerry_regions.registry import Member


def demands(
    desired: Desired,
    groups: Mapping[str, Group],
    running: Iterable[RunningProcess],
    members: Iterable[Member],
) -> dict[str, PoolDemand]:
    """Return the demand by pool.

    Requests that edges hold are its own region's to serve; where the region has no pool of their
    model, everybody's. Latencies are those that the edges of its region see.
    """
    processes = list(running)
    by_id = {member.id: member for member in members}
    edges = [member for member in by_id.values() if member.kind == "edge"]
    models = {
        id: (group.settings.region, group.settings.model)
        for id, group in groups.items()
        if isinstance(group.settings, NodeSettings)
    }
    found = {}
    for id, pool in desired.pools().items():
        if not pool.is_autoscaled or id not in models:
            continue
        region, model = models[id]
        nodes = [each for each in processes if each.owner == id and each.state == "ready"]
        near = [edge for edge in edges if edge.region == region]
        serving = set(models.values())
        held = sum(
            edge.held.get(model, 0.0)
            for edge in edges
            if edge.region == region or (edge.region, model) not in serving
        )
        found[id] = PoolDemand(
            ready=len(nodes),
            streams=sum(node.streams for node in nodes),
            held=int(held),
            queue_seconds=sum(by_id[node.id].queue_seconds for node in nodes if node.id in by_id),
            ttft=max((edge.ttft[model] for edge in near if model in edge.ttft), default=None),
            itl=max((edge.itl[model] for edge in near if model in edge.itl), default=None),
        )
    return found
