"""From what is wanted and what runs to each resource's status. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from skerry_regions.control.desired.desired import Desired, Record
from skerry_regions.control.desired.resources import (
    DEPLOYMENT,
    DNS_ZONE,
    EDGE_NODE,
    POOL,
    REGION,
    ROUTING,
    DeploymentSpec,
    ResourceKind,
    Status,
)
from skerry_regions.control.desired.statuses import (
    Condition,
    DeploymentStatus,
    EdgeNodeStatus,
    Phase,
    PoolStatus,
    RegionStatus,
)
from skerry_regions.control.desired.views import NodeView, ResourceFailure, rfc3339
from skerry_regions.control.errors import Conflict, UnknownResource
from skerry_regions.control.planning.launcher import (
    DNS,
    RELAYS,
    NodeSettings,
    RunningProcess,
    fingerprint,
)
from skerry_regions.control.planning.plan import Group
from skerry_regions.control.planning.wanted import INSTALLING

Statuses = Mapping[tuple[str, str], Status]

WORST_FIRST: tuple[Phase, ...] = ("degraded", "draining", "progressing", "pending", "ready")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All that statuses are made of."""

    desired: Desired
    groups: Mapping[str, Group]
    running: Mapping[str, RunningProcess]
    joined: Sequence[RunningProcess] = ()  # on machines that joined
    failing: Mapping[str, str]  # by owner: what its last process died of, while it keeps dying
    before: Statuses  # conditions keep their `since` while they stay
    now: float  # Unix seconds

    @property
    def processes(self) -> list[RunningProcess]:
        """Return those on all machines."""
        return [*self.running.values(), *self.joined]


def statuses(picture: Picture) -> dict[tuple[str, str], Status]:
    """Return those of every resource but tokens, by kind and id."""
    found: dict[tuple[str, str], Status] = {}
    for record in (*picture.desired.of(POOL), *picture.desired.of(EDGE_NODE)):
        found[record.kind.name, record.id] = _of_group(picture, record)
    for record in picture.desired.of(DEPLOYMENT):
        found[DEPLOYMENT.name, record.id] = _of_deployment(picture, record, found)
    for record in picture.desired.of(REGION):
        found[REGION.name, record.id] = _of_region(picture, record, found)
    return found


def resource_of(desired: Desired, owner: str) -> tuple[ResourceKind, str]:
    """Return the kind and id of the resource that an owner of processes is."""
    if owner == RELAYS:
        return ROUTING, "platform"
    if owner.startswith(DNS):
        return DNS_ZONE, owner.removeprefix(DNS)
    return (EDGE_NODE if desired.get(EDGE_NODE, owner) is not None else POOL), owner


def resource_failures(desired: Desired, failing: Mapping[str, str]) -> list[ResourceFailure]:
    """Return what processes keep dying of, by their owners, as what is said of resources."""
    found = []
    for owner, message in sorted(failing.items()):
        kind, id = resource_of(desired, owner)
        found.append(ResourceFailure(kind=kind.name, id=id, message=message))
    return found


def node_views(groups: Mapping[str, Group], running: Iterable[RunningProcess]) -> list[NodeView]:
    """Return every process, for the API."""
    views = []
    for process in running:
        group = groups.get(process.owner)
        settings = group.settings if group is not None else None
        is_node = isinstance(settings, NodeSettings)
        views.append(
            NodeView(
                id=process.id,
                kind=process.kind,
                owner=process.owner,
                region=process.region,
                role=settings.role if isinstance(settings, NodeSettings) else None,
                model=settings.model if isinstance(settings, NodeSettings) else "",
                pid=process.pid,
                state=process.state,
                updated=settings is not None and fingerprint(settings) == process.fingerprint,
                streams=process.streams,
                address=process.address,
                control=process.control if is_node else "",
            )
        )
    return views


def drainable(views: Iterable[NodeView], here: Container[str], id: str) -> NodeView:
    """Return the node or edge of an id, if it is `here`. Raises UnknownResource or Conflict."""
    for view in views:
        if view.id == id and view.kind in ("node", "edge"):
            if id not in here:
                raise Conflict(f"{id} runs on a machine that joined: end it there, by SIGTERM")
            return view
    raise UnknownResource(f"there is no node or edge {id}")


# --- pools and edge nodes ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Count:
    """Processes of one group."""

    desired: int
    ready: int
    updated: int  # ready, and made of the present settings
    running: int
    draining: int


def _count(
    group: Group | None, processes: Sequence[RunningProcess], joined: Sequence[RunningProcess]
) -> Count:
    """Count replicas: a machine that joined is one more that is wanted, unless it drains."""
    wanted = fingerprint(group.settings) if group is not None else ""
    ready = [process for process in processes if process.state == "ready"]
    return Count(
        desired=(group.replicas if group is not None else 0) + _num_staying(joined),
        ready=len(ready),
        updated=sum(process.fingerprint == wanted for process in ready),
        running=len(processes),
        draining=sum(process.state == "draining" for process in processes),
    )


def _num_staying(joined: Iterable[RunningProcess]) -> int:
    return sum(process.state != "draining" for process in joined)


def _of_group(picture: Picture, record: Record) -> PoolStatus | EdgeNodeStatus:
    group = picture.groups.get(record.id)
    processes = [each for each in picture.processes if each.owner == record.id]
    count = _count(group, processes, [each for each in picture.joined if each.owner == record.id])
    phase, reason, message = _judged(picture, record, group, count)
    conditions = (_condition(picture, record, phase == "ready", reason, message),)
    if record.kind is POOL:
        return PoolStatus(
            phase=phase,
            desired_replicas=count.desired,
            ready_replicas=count.ready,
            updated_replicas=count.updated,
            conditions=conditions,
        )
    urls = [_public_url(picture, each) for each in processes if each.state == "ready"]
    return EdgeNodeStatus(phase=phase, url=max(urls, default=""), conditions=conditions)


def _public_url(picture: Picture, process: RunningProcess) -> str:
    """Return where clients reach an edge: as its operator says, or where it listens."""
    spec = picture.desired.edge_nodes().get(process.owner)
    return (spec.public_url if spec is not None else None) or process.address


def _judged(
    picture: Picture, record: Record, group: Group | None, count: Count
) -> tuple[Phase, str, str]:
    """Return the phase, and why in one word and in one sentence."""
    told = f"{count.ready} of {count.desired} ready"
    if record.deleting or (count.desired == 0 and count.running):
        return "draining", "Draining", f"{count.running} still running"
    if group is None:
        return "pending", "NoModel", "no deployment names this pool, and it has no model of its own"
    if group.is_unknown:
        return "degraded", "ModelUnavailable", group.blocked
    if group.blocked and count.updated < count.desired:
        if group.blocked == INSTALLING:
            return "progressing", "Installing", group.blocked
        return "degraded", "ModelUnavailable", group.blocked
    if count.desired and (died := picture.failing.get(record.id)):
        return "degraded", "KeepsFailing", died
    if record.kind is EDGE_NODE and count.desired == 0 and not _is_drained(picture, record):
        return "pending", "NoModels", "there is no pool with a model to offer"
    if count.updated == count.desired == count.running:
        return "ready", "Ready", told
    if count.running - count.draining > count.updated and count.ready > count.updated:
        return "progressing", "Rolling", f"{told}, {count.updated} of them made of this spec"
    return "progressing", "Draining" if count.updated == count.desired else "Starting", told


def _is_drained(picture: Picture, record: Record) -> bool:
    edge = picture.desired.edge_nodes()[record.id]
    region = picture.desired.regions().get(edge.region)
    return edge.draining or (region is not None and region.draining)


# --- what is made of others ----------------------------------------------------------------------


def _of_deployment(picture: Picture, record: Record, found: Statuses) -> DeploymentStatus:
    assert isinstance(record.spec, DeploymentSpec)
    pools = [found[POOL.name, pool] for pool in record.spec.pools if (POOL.name, pool) in found]
    owners = {*record.spec.pools}
    regions = {
        process.region
        for process in picture.processes
        if process.owner in owners and process.state == "ready"
    }
    endpoints = {
        _public_url(picture, process)
        for process in picture.processes
        if process.kind == "edge" and process.state == "ready"
    }
    phase = _worst(pools) if pools else "draining"
    ready = phase == "ready"
    reason = "Ready" if ready else "PoolsNotReady"
    waits = [
        pool for pool in record.spec.pools
        if (status := found.get((POOL.name, pool))) is None or status.phase != "ready"
    ]  # fmt: skip
    message = "" if ready else f"not ready: {', '.join(waits[:10])}"
    return DeploymentStatus(
        phase=phase,
        regions=tuple(sorted(regions)),
        endpoints=tuple(sorted(endpoints)),
        conditions=(_condition(picture, record, ready, reason, message),),
    )


def _of_region(picture: Picture, record: Record, found: Statuses) -> RegionStatus:
    desired = picture.desired
    members = [
        (kind.name, id)
        for kind, specs in ((POOL, desired.pools()), (EDGE_NODE, desired.edge_nodes()))
        for id, spec in specs.items()
        if spec.region == record.id
    ]
    processes = [each for each in picture.processes if each.region == record.id]
    joined = [each for each in picture.joined if each.region == record.id]
    phase = _worst([found[key] for key in members])
    if record.deleting:
        phase = "draining"
    ready = phase == "ready"
    message = "" if ready else f"{len(members)} pools and edge nodes, {len(processes)} processes"
    return RegionStatus(
        phase=phase,
        ready_nodes=sum(process.state == "ready" for process in processes),
        desired_nodes=_num_staying(joined)
        + sum(picture.groups[id].replicas for _, id in members if id in picture.groups),
        conditions=(
            _condition(picture, record, ready, "Ready" if ready else phase.capitalize(), message),
        ),
    )


def _worst(statuses: Sequence[Status]) -> Phase:
    """Return the worst phase; of none, that nothing is missing."""
    phases = {each.phase for each in statuses}
    for phase in WORST_FIRST:
        if phase in phases:
            return phase
    return "ready"


def _condition(
    picture: Picture, record: Record, ready: bool, reason: str, message: str
) -> Condition:
    before = picture.before.get((record.kind.name, record.id))
    since = rfc3339(picture.now)
    for condition in before.conditions if before is not None else ():
        if condition.type == "Ready" and condition.status == ready:
            since = condition.since
    return Condition(type="Ready", status=ready, reason=reason, message=message, since=since)
