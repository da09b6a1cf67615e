"""What is seen of a resource: metadata, conditions and the status of each kind."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Metadata(Struct, frozen=True, kw_only=True):
    """What the control plane notes of every resource. Times are RFC 3339, UTC."""

    etag: str  # also in the header; changes with every write
    created_at: str
    updated_at: str
    deleting: bool = False  # to be deleted; it is gone once all of it has drained


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
