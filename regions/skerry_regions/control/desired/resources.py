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

from skerry_regions.control.desired.dns_specs import DnsRecordSpec, DnsZoneSpec
from skerry_regions.spec_types import IPAddress, Latitude, Longitude, Name, Size

MAX_POOLS = 1000  # of one deployment
MAX_PROMPTS = 64  # of one deployment
MAX_PROMPT_CHARS = 65_536
MAX_REPLICAS = 1000

RoleName = Literal["prefill", "decode", "hybrid"]
RunnerName = Literal["numba", "torch", "torch-deterministic", "jax", "toy"]
ScopeName = Literal["run", "read", "admin"]
ModelName = Annotated[str, Meta(min_length=1, max_length=256)]  # catalog id or alias
Id = Annotated[str, Meta(min_length=1, max_length=128)]
DnsId = Annotated[str, Meta(min_length=1, max_length=512)]
Replicas = Annotated[int, Meta(ge=0, le=MAX_REPLICAS)]
Prompt = Annotated[str, Meta(min_length=1, max_length=MAX_PROMPT_CHARS)]
SloSeconds = Annotated[float, Meta(gt=0, le=3600)]


class RegionSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place where nodes and edges stand: an airport that we know, or coordinates."""

    name: Name
    iata: Annotated[str, Meta(pattern="^[A-Z]{3}$")] | None = None
    latitude: Latitude | None = None  # degrees
    longitude: Longitude | None = None  # degrees
    residency: Annotated[str, Meta(min_length=1, max_length=64)] = "global"  # zone
    draining: bool = False  # what runs here ends as its streams do, and nothing is started


class EdgeNodeSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gateway. Port 0 takes a free one, and keeps it."""

    name: Name
    region: Name
    host: Annotated[str, Meta(min_length=1, max_length=253)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    addresses: Annotated[tuple[IPAddress, ...], Meta(max_length=16)] = ()
    """Where clients reach it, if that is not `host`: what DNS tells them."""
    draining: bool = False  # it ends as its streams do, and is not started again


class PoolSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal nodes of one region.

    Either `replicas` of them run, or, with `max_replicas`, as many as demand asks for. The model is
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
    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None  # per node; None: its share
    kv_blocks: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None  # per node, of 64 tokens
    file_tier: Size | None = None  # of disk per node, for KV beyond memory; "none" for none
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
    scopes: Annotated[tuple[ScopeName, ...], Meta(min_length=1, max_length=3)] = ("run", "read")


Spec = (
    RegionSpec
    | EdgeNodeSpec
    | PoolSpec
    | DeploymentSpec
    | ApiTokenSpec
    | DnsZoneSpec
    | DnsRecordSpec
)


# --- what is read back ---------------------------------------------------------------------------


class Metadata(Struct, frozen=True, kw_only=True):
    """What the control plane notes of every resource. Times are RFC 3339, UTC."""

    etag: str  # also in the header; changes with every write
    created_at: str
    updated_at: str
    deleting: bool = False  # asked to go; it is gone once all of it has drained


class Condition(Struct, frozen=True, kw_only=True):
    """One thing that is so or not, since when, and why."""

    type: str
    status: bool
    reason: str  # one word, for programs
    message: str = ""  # a sentence, for people
    since: str  # RFC 3339


Phase = Literal["pending", "progressing", "ready", "degraded", "draining"]


class RegionStatus(Struct, frozen=True, kw_only=True):
    """`ready` when every pool and edge node of the region is."""

    phase: Phase = "pending"
    ready_nodes: int = 0
    desired_nodes: int = 0
    conditions: tuple[Condition, ...] = ()


class EdgeNodeStatus(Struct, frozen=True, kw_only=True):
    phase: Phase = "pending"
    url: str = ""  # where clients reach it, once it has been ready
    conditions: tuple[Condition, ...] = ()


class PoolStatus(Struct, frozen=True, kw_only=True):
    """`ready` when as many nodes as desired are, all of them made of the present spec."""

    phase: Phase = "pending"
    desired_replicas: int = 0  # of an autoscaled pool what it decided
    ready_replicas: int = 0  # made of any spec
    updated_replicas: int = 0  # ready, and made of the present spec
    conditions: tuple[Condition, ...] = ()


class DeploymentStatus(Struct, frozen=True, kw_only=True):
    """`ready` when all its pools are, and one of them decodes."""

    phase: Phase = "pending"
    regions: tuple[str, ...] = ()  # where a node of it is ready
    endpoints: tuple[str, ...] = ()  # URLs of edges that offer it
    conditions: tuple[Condition, ...] = ()


class Region(RegionSpec, frozen=True, kw_only=True):
    id: Id
    meta: Metadata
    status: RegionStatus


class EdgeNode(EdgeNodeSpec, frozen=True, kw_only=True):
    id: Id
    meta: Metadata
    status: EdgeNodeStatus


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


Resource = Region | EdgeNode | Pool | Deployment | ApiToken | DnsZone | DnsRecord
Status = RegionStatus | EdgeNodeStatus | PoolStatus | DeploymentStatus


# --- kinds ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """One of them, and what the API needs to know of it."""

    name: str
    collection: str  # in paths
    spec: type[Spec]
    resource: type[Resource]
    status: type[Status] | None
    fixed: frozenset[str]  # fields that never change; another value is another resource


REGION = Kind("region", "regions", RegionSpec, Region, RegionStatus, frozenset({"name"}))
EDGE_NODE = Kind(
    "edge_node", "edge_nodes", EdgeNodeSpec, EdgeNode, EdgeNodeStatus,
    frozenset({"name", "region"}),
)  # fmt: skip
POOL = Kind("pool", "pools", PoolSpec, Pool, PoolStatus, frozenset({"name", "region", "role"}))
DEPLOYMENT = Kind(
    "deployment", "deployments", DeploymentSpec, Deployment, DeploymentStatus, frozenset({"name"})
)
API_TOKEN = Kind(
    "api_token", "api_tokens", ApiTokenSpec, ApiToken, None,
    frozenset({"name", "account_id", "scopes"}),
)  # fmt: skip
DNS_ZONE = Kind("dns_zone", "dns_zones", DnsZoneSpec, DnsZone, None, frozenset({"name"}))
DNS_RECORD = Kind(
    "dns_record", "dns_records", DnsRecordSpec, DnsRecord, None,
    frozenset({"zone", "name", "type"}),
)  # fmt: skip
KINDS = (REGION, EDGE_NODE, POOL, DEPLOYMENT, API_TOKEN, DNS_ZONE, DNS_RECORD)
BY_NAME = {kind.name: kind for kind in KINDS}


def new_id(spec: Spec) -> str:
    """What a resource of this spec is called. A token's name need not be its own: drawn."""
    match spec:
        case PoolSpec():
            return f"{spec.region}-{spec.name}"
        case ApiTokenSpec():
            return secrets.token_hex(8)
        case DnsRecordSpec():
            return f"{spec.zone}:{spec.name}:{spec.type}"
        case _:
            return spec.name
