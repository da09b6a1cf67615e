"""What the API answers with: resources as read back, what runs, the platform at a glance."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta, Struct

from skerry_regions.control.desired.desired import Record
from skerry_regions.control.desired.resources import Resource, RoleName, Status
from skerry_regions.control.desired.statuses import Metadata, Phase
from skerry_regions.models.catalog import ModelId

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


ModelAction = Literal["pull", "add"]
ModelViewState = Literal["installed", "installing", "absent", "failed"]


class ModelJob(Struct, frozen=True, kw_only=True):
    """The installation of a model on the control plane's machine: how far it is, or how it ended.

    Times are RFC 3339, UTC.
    """

    id: str
    action: ModelAction
    model: str  # id of the catalog, now or once it is done
    actor: str  # who wanted it; `skerry`: a pool does
    state: Literal["running", "cancelling", "done", "failed", "cancelled"] = "running"
    doing: str = ""  # the step that it is at
    share: float = 0.0  # of that step, 0 to 1
    num_bytes: int | None = None  # of that step
    message: str = ""  # what it failed with; what is worth knowing of what it did
    started_at: str
    ended_at: str | None = None


class ModelView(Struct, frozen=True, kw_only=True):
    """A model that the control plane's machine knows."""

    id: str
    aliases: tuple[str, ...] = ()
    task: str
    context_window: int  # tokens
    num_bytes: int | None = None  # of its files; None: known once it is looked up on the hub
    source: str
    state: ModelViewState
    message: str = ""  # what it failed with
    is_own: bool = False  # entered on this machine: it can be taken out
    wanted_by: tuple[str, ...] = ()  # ids of pools
    takes: dict[str, Any] | None = None  # of memory, read of one alone: as `skerry models show`


class ModelRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that is to be had: fetched (`pull`), or entered as it is there (`add`)."""

    source: Annotated[str, Meta(min_length=1, max_length=1024)]
    """To pull: an id, or `hf:OWNER/REPOSITORY[@REVISION][:FILE]`. To add: the id of another model,
    or the absolute path of a file or folder."""
    name: ModelId | None = None  # to serve it under
    action: ModelAction = "pull"
    replace: bool = False  # also a model that comes with Skerry


class AccountCaps(Struct, frozen=True, kw_only=True):
    """What all tokens of an account may spend together, in US$; None: without a cap."""

    id: str
    per_day: float | None = None  # UTC
    per_month: float | None = None


class Accounts(Protocol):
    """The store of accounts' limits. Methods block for milliseconds, and raise Conflict."""

    def caps(self, ids: Iterable[str]) -> list[AccountCaps]:
        """Return those of accounts, and of all that have limits of their own, by id."""
        ...

    def change(self, id: str, patch: Mapping[str, float | None]) -> tuple[AccountCaps, AccountCaps]:
        """Set some of an account; return what was, and what is."""
        ...


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
