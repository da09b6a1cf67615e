"""What an operator may want: regions, edge nodes, pools, deployments, API tokens, and DNS.

A `…Spec` is what is written; the struct of the same name without `Spec` is what is read back: the
spec, its id, when it was written, and what the reconciler sees of it. Ranges are part of the types,
so the same structs check requests and make the OpenAPI document.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from skerry.runners import RunnerName
from skerry_regions.access import MAX_MODELS, AccessRole, Dollars, Grant, ModelPattern, StoredScope
from skerry_regions.control.desired.statuses import (
    DeploymentStatus,
    EdgeNodeStatus,
    Metadata,
    PoolStatus,
    RegionStatus,
)
from skerry_regions.control.dns.specs import DnsRecordSpec, DnsZoneSpec
from skerry_regions.spec_types import (
    ConsoleMode,
    EngineSpec,
    HostName,
    HttpURL,
    IataCode,
    IPAddress,
    Latitude,
    LauncherName,
    LinkBandwidth,
    LinkRtt,
    Longitude,
    Name,
    PEMFile,
    PlacementRule,
    Size,
    UtcSecond,
    unix_seconds,
)
from skerry_regions.topology.spec import Emulate, RouterSpec, Steer
from skerry_regions.zones import Zone

MAX_POOLS = 1000  # of one deployment
MAX_PROMPTS = 64  # of one deployment
MAX_PROMPT_CHARS = 65_536
MAX_REPLICAS = 1000

RoleName = Literal["prefill", "decode", "hybrid"]
ModelName = Annotated[str, Meta(min_length=1, max_length=256)]  # catalog id or alias
Id = Annotated[str, Meta(min_length=1, max_length=128)]
DnsId = Annotated[str, Meta(min_length=1, max_length=512)]
Replicas = Annotated[int, Meta(ge=0, le=MAX_REPLICAS)]
Prompt = Annotated[str, Meta(min_length=1, max_length=MAX_PROMPT_CHARS)]
SloSeconds = Annotated[float, Meta(gt=0, le=3600)]


class PathSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to assume of a path, either way, until it is measured; what is absent is a prior."""

    to: Name  # a region; itself: of the paths inside
    rtt: LinkRtt | None = None  # seconds
    bandwidth: LinkBandwidth | None = None  # bytes per second


class RegionSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place where nodes and edges stand: an airport that we know, or coordinates."""

    name: Name
    iata: IataCode | None = None
    latitude: Latitude | None = None  # degrees
    longitude: Longitude | None = None  # degrees
    residency: Annotated[str, Meta(min_length=1, max_length=64)] = "global"  # zone
    draining: bool = False  # what runs here ends as its streams do, and nothing is started
    paths: Annotated[tuple[PathSpec, ...], Meta(max_length=1000)] = ()
    """To other regions, each given at one of its ends; edges that start from then on know them."""

    def leads_to(self, region: str) -> bool:
        return any(path.to == region for path in self.paths)


class EdgeNodeSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gateway. Port 0 takes a free one, and keeps it."""

    name: Name
    region: Name
    host: HostName = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    addresses: Annotated[tuple[IPAddress, ...], Meta(max_length=16)] = ()  # for DNS, if not `host`
    hosts: Annotated[tuple[HostName, ...], Meta(max_length=64)] = ()  # its names; none: all
    tls_cert: PEMFile | None = None  # a certificate with its chain, on this machine …
    tls_key: PEMFile | None = None  # … and its key; both are read again when they change
    public_url: HttpURL | None = None  # that clients are given, where host and port are not it
    placement: PlacementRule = "cost"  # the others to compare with
    console: ConsoleMode = "loopback"  # whom its pages are shown to
    draining: bool = False  # it ends as its streams do, and is not started again


class RoutingSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How requests find their way; there is one. Edges take a change up by being replaced."""

    name: Literal["platform"] = "platform"
    emulate: Emulate | None = None  # distances between regions that are all on this machine
    steer: Steer | None = None  # clients that are nearer to another edge
    router: RouterSpec = RouterSpec()


class PoolSpec(EngineSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal nodes of one region.

    Either `replicas` of them run, or, with `max_replicas`, as many as demand needs. The model is
    the pool's own, or that of the deployment that names the pool; without either nothing runs.
    """

    name: Name
    region: Name
    role: RoleName
    model: ModelName | None = None
    runner: RunnerName = "numba"
    replicas: Replicas | None = None  # 1, where `max_replicas` is absent
    min_replicas: Replicas | None = None  # 0, where `max_replicas` is given
    max_replicas: Annotated[int, Meta(ge=1, le=MAX_REPLICAS)] | None = None
    target_queue_seconds: SloSeconds = 1.0  # more work than this waits: scale up
    target_ttft_seconds: SloSeconds = 2.0  # p95; of pools that prefill
    target_itl_seconds: SloSeconds = 0.2  # p95; of pools that decode
    idle_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 300.0  # before scaling down
    launcher: LauncherName = "local"  # where nodes are started
    memory: Size | None = None  # per node, of the machine that it is placed on; None: uncounted
    gpus: Annotated[int, Meta(ge=0, le=64)] = 0  # the same
    deletion_protection: bool = False

    @property
    def is_autoscaled(self) -> bool:
        return self.max_replicas is not None


class DeploymentSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model served from pools. A new model rolls through them without cutting a stream."""

    name: Name
    model: ModelName
    pools: Annotated[tuple[Id, ...], Meta(min_length=1, max_length=MAX_POOLS)]  # ids
    system_prompts: Annotated[tuple[Prompt, ...], Meta(max_length=MAX_PROMPTS)] = ()
    """Computed by every node before it is ready, and found cached by every tenant."""


class ApiTokenSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bearer token of the platform. Its secret is in the answer to its creation only."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    account_id: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")] | None = None  # None: ours
    role: AccessRole | None = None  # None: the control plane refuses it
    scopes: Annotated[tuple[StoredScope, ...], Meta(max_length=5)] = ()  # none: those of its role
    models: Annotated[tuple[ModelPattern, ...], Meta(max_length=MAX_MODELS)] | None = None
    """Ids or aliases that it may run, or beginnings with `*` behind them; all unless given."""
    residency: Zone | None = None  # that its requests never leave
    per_day: Dollars | None = None  # US$ that it may spend in a UTC day, its children included …
    per_month: Dollars | None = None  # … and month
    expires_at: UtcSecond | None = None
    parent: Id | None = None  # the token that it was made with

    @property
    def grant(self) -> Grant:
        """Return what the token may do by itself."""
        return Grant(
            role=self.role,
            scopes=tuple(each for each in self.scopes if each != "admin"),
            residency=self.residency,
            models=self.models,
            per_day=self.per_day,
            per_month=self.per_month,
            expires_at=None if self.expires_at is None else unix_seconds(self.expires_at),
        )


Spec = (
    RegionSpec | EdgeNodeSpec | PoolSpec | DeploymentSpec | ApiTokenSpec
    | DnsZoneSpec | DnsRecordSpec | RoutingSpec
)  # fmt: skip


class Region(RegionSpec, frozen=True, kw_only=True):
    id: Id
    meta: Metadata
    status: RegionStatus


class EdgeNode(EdgeNodeSpec, frozen=True, kw_only=True):
    id: Id
    meta: Metadata
    status: EdgeNodeStatus


class PlatformRouting(RoutingSpec, frozen=True, kw_only=True):
    id: Id
    meta: Metadata


class Pool(PoolSpec, frozen=True, kw_only=True):
    id: Id  # REGION-NAME; its nodes are called ID-0, ID-1, …
    meta: Metadata
    status: PoolStatus


class Deployment(DeploymentSpec, frozen=True, kw_only=True):
    id: Id
    meta: Metadata
    status: DeploymentStatus


class ApiToken(ApiTokenSpec, frozen=True, kw_only=True):
    id: Id
    meta: Metadata
    secret: str | UnsetType = UNSET  # the token itself, in the answer to its creation only


class DnsZone(DnsZoneSpec, frozen=True, kw_only=True):
    id: DnsId
    meta: Metadata


class DnsRecord(DnsRecordSpec, frozen=True, kw_only=True):
    id: DnsId  # ZONE:NAME:TYPE
    meta: Metadata


Resource = Region | EdgeNode | Pool | Deployment | ApiToken | DnsZone | DnsRecord | PlatformRouting
Status = RegionStatus | EdgeNodeStatus | PoolStatus | DeploymentStatus


# --- kinds ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """One of them, and what the API needs to know of it."""

    name: str
    collection: str  # in paths
    spec: type[Spec]
    resource: type[Resource]
    status: type[Status] | None
    fixed: frozenset[str]  # fields that never change; another value is another resource


REGION = ResourceKind("region", "regions", RegionSpec, Region, RegionStatus, frozenset({"name"}))
EDGE_NODE = ResourceKind(
    "edge_node", "edge_nodes", EdgeNodeSpec, EdgeNode, EdgeNodeStatus,
    frozenset({"name", "region"}),
)  # fmt: skip
POOL = ResourceKind(
    "pool", "pools", PoolSpec, Pool, PoolStatus, frozenset({"name", "region", "role"})
)
DEPLOYMENT = ResourceKind(
    "deployment", "deployments", DeploymentSpec, Deployment, DeploymentStatus, frozenset({"name"})
)
API_TOKEN = ResourceKind(
    "api_token", "api_tokens", ApiTokenSpec, ApiToken, None,
    frozenset(ApiTokenSpec.__struct_fields__) - {"per_day", "per_month"},
)  # fmt: skip
DNS_ZONE = ResourceKind("dns_zone", "dns_zones", DnsZoneSpec, DnsZone, None, frozenset({"name"}))
DNS_RECORD = ResourceKind(
    "dns_record", "dns_records", DnsRecordSpec, DnsRecord, None,
    frozenset({"zone", "name", "type"}),
)  # fmt: skip
ROUTING = ResourceKind(
    "routing", "routing", RoutingSpec, PlatformRouting, None, frozenset({"name"})
)
KINDS = (REGION, EDGE_NODE, POOL, DEPLOYMENT, API_TOKEN, DNS_ZONE, DNS_RECORD, ROUTING)
NOTHING_RUNS = (DNS_ZONE, DNS_RECORD, ROUTING)  # of these kinds: they go at once
BY_NAME = {kind.name: kind for kind in KINDS}


def new_id(spec: Spec) -> str:
    """Return what a resource of this spec is called. A token's name need not be its own: drawn."""
    match spec:
        case PoolSpec():
            return f"{spec.region}-{spec.name}"
        case ApiTokenSpec():
            return secrets.token_hex(8)
        case DnsRecordSpec():
            return f"{spec.zone}:{spec.name}:{spec.type}"
        case _:
            return spec.name
