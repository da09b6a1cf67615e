"""From resources to processes: which groups there should be, and how many of each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.desired.resources import (
    EDGE_NODE,
    POOL,
    REGION,
    PoolSpec,
    ResourceKind,
    RoutingSpec,
)
from skerry_regions.control.planning.launcher import (
    DNS,
    RELAYS,
    DnsSettings,
    EdgeSettings,
    NodeSettings,
    RelaySettings,
)
from skerry_regions.control.planning.plan import Group
from skerry_regions.control.planning.platform_topology import platform_topology
from skerry_regions.models.problems import LeftOut
from skerry_regions.spec_types import size_bytes

INSTALLING = "the model is being installed"


@dataclass(frozen=True, slots=True)
class ModelState:
    """A model's files on this machine. Installed, on their way, or not to be had."""

    id: str  # of the catalog, once it is known
    blocked: str = ""  # why no node can load it now
    left_out: str = ""  # why, for clients: its files cannot be had, or opened


Models = Callable[[str], ModelState]
"""The state of a model by id or alias."""

NO_DECISIONS: Mapping[str, int] = MappingProxyType({})


def wanted(
    desired: Desired,
    models: Models,
    *,
    scales: Mapping[str, int] = NO_DECISIONS,
    ports: Mapping[str, int] = NO_DECISIONS,
) -> dict[str, Group]:
    """Return groups by id of their pool or edge node.

    `scales` are the replicas that the autoscaler decided on, by pool; `ports` those that edges
    had before, by edge node.
    """
    groups: dict[str, Group] = {}
    offered: set[str] = set()
    left_out: set[LeftOut] = set()
    for id, pool in desired.pools().items():
        if (name := desired.model_of(id)) is not None:
            model = models(name)
            groups[id] = _node_group(desired, id, pool, model, scales.get(id))
            if model.left_out:
                left_out.add(LeftOut(model.id, model.left_out, ""))
            elif model.id and not desired.is_deleting(POOL, id):
                offered.add(model.id)
    lost = tuple(sorted(left_out, key=lambda each: each.model))
    for id in desired.edge_nodes():
        groups[id] = _edge_group(desired, id, tuple(sorted(offered)), lost, ports.get(id, 0))
    if desired.routing().emulate is not None:
        rtts = platform_topology(desired).rtts()
        groups[RELAYS] = Group(id=RELAYS, replicas=1, settings=RelaySettings(rtts=rtts))
    for zone, spec in desired.dns_zones().items():
        if spec.serve:
            dns = DnsSettings(zone=zone, host=spec.host, port=spec.port)
            groups[DNS + zone] = Group(id=DNS + zone, replicas=1, settings=dns)
    return groups


def _node_group(
    desired: Desired, id: str, pool: PoolSpec, model: ModelState, scale: int | None
) -> Group:
    leaving = is_leaving(desired, POOL, id, pool.region)
    settings = NodeSettings(
        region=pool.region,
        residency=desired.residency_of(pool.region),
        role=pool.role,
        model=model.id or pool.model or "",
        runner=pool.runner,
        threads=pool.threads,
        kv_blocks=pool.kv_blocks,
        streams=pool.streams,
        step_tokens=pool.step_tokens,
        draft_tokens=pool.draft_tokens,
        file_tier=pool.file_tier,
        pin_share=pool.pin_share,
        weights=pool.weights,
        kv=pool.kv,
        tensor=None if pool.parallel is None else pool.parallel.tensor,
        pipeline=None if pool.parallel is None else pool.parallel.pipeline,
        stages=() if pool.parallel is None else pool.parallel.stages,
        system_prompts=_system_prompts(desired, id),
        launcher=pool.launcher,
        memory=0 if pool.memory is None else size_bytes(pool.memory),
        gpus=pool.gpus,
    )
    replicas = 0 if leaving else replicas_of(pool, scale)
    # Hosts install it themselves.
    is_on_its_way = settings.is_hosted and model.blocked == INSTALLING
    return Group(
        id=id,
        replicas=replicas,
        settings=settings,
        blocked="" if is_on_its_way else model.blocked,
        is_unknown=not model.id,
    )


def _edge_group(
    desired: Desired, id: str, models: tuple[str, ...], left_out: tuple[LeftOut, ...], former: int
) -> Group:
    """Return a zone's edges; without models to offer none runs."""
    edge = desired.edge_nodes()[id]
    leaving = edge.draining or is_leaving(desired, EDGE_NODE, id, edge.region)
    settings = EdgeSettings(
        region=edge.region,
        residency=desired.residency_of(edge.region),
        host=edge.host,
        hosts=edge.hosts,
        tls=(edge.tls_cert, edge.tls_key) if edge.tls_cert and edge.tls_key else None,
        public_url=edge.public_url,
        placement=edge.placement,
        console=edge.console,
        models=models,
        left_out=left_out,
        routing=None if desired.routing() == RoutingSpec() else desired.routing(),
    )
    replicas = 0 if leaving or not models else 1
    return Group(id=id, replicas=replicas, settings=settings, port=edge.port, former_port=former)


def replicas_of(pool: PoolSpec, scale: int | None) -> int:
    """Return it as written; of an autoscaled pool as decided, within its limits."""
    if pool.max_replicas is None:
        return 1 if pool.replicas is None else pool.replicas
    least = pool.min_replicas or 0
    return min(max(scale if scale is not None else least, least), pool.max_replicas)


def is_leaving(desired: Desired, kind: ResourceKind, id: str, region: str) -> bool:
    """Return whether a pool or an edge node of a region is to go, by itself or with the region."""
    record = desired.get(kind, id)
    spec = desired.regions().get(region)
    return (
        record is None
        or record.deleting
        or spec is None
        or spec.draining
        or desired.is_deleting(REGION, region)
    )


def _system_prompts(desired: Desired, pool: str) -> tuple[str, ...]:
    deployment = desired.deployment_of(pool)
    return () if deployment is None else desired.deployments()[deployment].system_prompts
