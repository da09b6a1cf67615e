"""What the API answers with: resources as read back, what runs, the platform at a glance."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct

from skerry_regions.control.desired.desired import Record
from skerry_regions.control.desired.resources import Resource, RoleName, Status
from skerry_regions.control.desired.statuses import Metadata, Phase

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class NodeView(Struct, frozen=True, kw_only=True):
    """One process that runs: a node, an edge, relays of emulated distances, a zone's server."""

    id: str
    kind: Literal["node", "edge", "relays", "dns"]
    owner: str  # id of its pool or edge node
    region: str
    role: RoleName | None = None  # of a node
    model: str = ""  # of a node
    pid: int
    state: Literal["starting", "ready", "draining", "failed"]
    updated: bool  # made of the present spec
    streams: int = 0
    address: str = ""  # of a node's frames, or an edge's URL
    control: str = ""  # of a node's own HTTP API


class RegionOverview(Struct, frozen=True, kw_only=True):
    name: str
    phase: Phase
    ready_nodes: int
    desired_nodes: int


class ResourceFailure(Struct, frozen=True, kw_only=True):
    """What the last process of a resource died of, while they keep ending."""

    kind: str
    id: str
    message: str


class PlatformStatus(Struct, frozen=True, kw_only=True):
    """`observed_revision` below `revision`: the latest writes have not been looked at yet."""

    version: str
    revision: int
    observed_revision: int
    account_id: str
    regions: list[RegionOverview]
    failing: list[ResourceFailure]


class DnsQuestion(Struct, frozen=True, kw_only=True):
    """`client` is where it comes from; None is nowhere that we know."""

    name: str
    type: str
    client: IPNetwork | None = None


class DnsAnswer(Struct, frozen=True, kw_only=True):
    """What a server of the zone answers now, as far as the control plane sees who is up."""

    zone: str
    name: str
    type: str
    client: str  # a network; empty: not known
    status: str  # NOERROR or NXDOMAIN
    ttl: int  # seconds
    values: list[str]  # as in a zone file
    scope: int  # bits of the client's address that the answer is true for
    regions: list[str]  # of a name that is answered by place: best first


AnswerDns = Callable[[DnsQuestion], DnsAnswer]
"""Raises ControlError. Blocks."""


class Observer(Protocol):
    """Whoever sees what runs."""

    @property
    def revision(self) -> int:
        """Return that of what was wanted when it last looked."""
        ...

    def status(self, record: Record) -> Status | None:
        """Return the status; None before it has looked at the resource."""
        ...

    def nodes(self) -> list[NodeView]: ...

    def drain(self, id: str) -> NodeView:
        """Replace a node or an edge of this machine. Raises ControlError."""
        ...

    def failing(self) -> list[ResourceFailure]:
        """Return resources whose processes keep ending."""
        ...


def rfc3339(at: float) -> str:
    """Format Unix seconds as UTC with milliseconds."""
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def view(record: Record, status: Status | None, **more: Any) -> Resource:
    """Return a record as it is read back."""
    meta = Metadata(
        etag=record.etag,
        created_at=rfc3339(record.created_at),
        updated_at=rfc3339(record.updated_at),
        deleting=record.deleting,
    )
    values: dict[str, Any] = msgspec.structs.asdict(record.spec)
    values |= {"id": record.id, "meta": meta} | more
    if record.kind.status is not None:
        values["status"] = status if status is not None else record.kind.status()
    return record.kind.resource(**values)
