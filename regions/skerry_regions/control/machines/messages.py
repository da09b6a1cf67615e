"""What machines and the control plane say to each other, over HTTPS below `/machines/v1`.

    GET  /ca           the authority's certificate, as PEM; its fingerprint is in the join token
    POST /join         JoinRequest -> Joined           with a join token
    POST /renew        RenewRequest -> Joined          from here on with the certificate
    GET  /assignment   AssignmentAnswer                what the machine is to run
    PUT  /member       Announcement -> Orders          registry: I am here
    POST /withdraw     Withdrawal                      registry: I am gone
    GET  /members      [Member]                        registry: who is there
    GET  /credentials  Credentials                     edges only
    POST /host         HostReport -> HostOrders        hosts only

Every request names the versions that the machine speaks in the header `skerry-versions`; there is
no answer without a common one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from skerry_regions.control.planning.launcher import Ended, Launch, NodeSettings, RunningProcess
from skerry_regions.process.launch_folder import Slot
from skerry_regions.registry import Count, Member

PREFIX = "/machines/v1"
SERVER_NAME = "control.skerry.internal"  # in the listener's certificate, wherever it is reached
VERSIONS = (1,)
VERSIONS_HEADER = "skerry-versions"
MAX_PEM = 16_384
MAX_REQUEST_BYTES = 1 << 20  # what edges say of a thousand models has a fifth of it
MAX_LEASE_SECONDS = 3600.0
MAX_REASON = 1024

MAX_PROCESSES = 1024  # of one host

Kind = Literal["node", "edge", "host"]
Pem = Annotated[str, Meta(max_length=MAX_PEM)]
Short = Annotated[str, Meta(max_length=256)]
Key = Annotated[bytes, Meta(max_length=64)]


class JoinRequest(Struct, frozen=True, kw_only=True):
    """`pool` is needed where the token leaves a choice."""

    token: Annotated[str, Meta(max_length=512)]
    csr: Pem
    kind: Kind
    pool: Short = ""
    hostname: Short = ""
    version: Short = ""  # of Skerry


class RenewRequest(Struct, frozen=True, kw_only=True):
    csr: Pem
    version: Short = ""


class Joined(Struct, frozen=True, kw_only=True):
    """What a machine keeps."""

    machine: Short
    certificate: Pem
    not_after: float  # Unix seconds
    cluster_key: Key  # that links over TCP prove to hold


class NodeAssignment(Struct, frozen=True, kw_only=True, tag="node"):
    """What a machine of a pool runs."""

    settings: NodeSettings
    fingerprint: Short


class EdgeAssignment(Struct, frozen=True, kw_only=True, tag="edge"):
    """What an edge of a region offers. `topology` is the regions there are, as a YAML file."""

    region: Short
    residency: Short
    models: Annotated[tuple[Short, ...], Meta(max_length=1024)]  # catalog ids
    topology: Annotated[str, Meta(max_length=1 << 20)]
    fingerprint: Short


class Paused(Struct, frozen=True, kw_only=True, tag="paused"):
    """It runs nothing for now."""

    reason: Annotated[str, Meta(max_length=MAX_REASON)]


Assignment = NodeAssignment | EdgeAssignment | Paused


class AssignmentAnswer(Struct, frozen=True, kw_only=True):
    assignment: Assignment


class Announcement(Struct, frozen=True, kw_only=True):
    """`fingerprint` is that of the assignment that the machine runs."""

    member: Member
    lease_seconds: Annotated[float, Meta(gt=0.0, le=MAX_LEASE_SECONDS)]
    fingerprint: Short = ""
    revocations: Short = ""  # digest of those that it knows


class Revocations(Struct, frozen=True, kw_only=True):
    """Machines that were revoked, while their certificates would still count: to be shut out."""

    digest: Short
    machines: tuple[Short, ...]


Order = Literal["serve", "renew"]
"""`renew`: drain, and fetch the assignment again."""


class Orders(Struct, frozen=True, kw_only=True):
    """`holder` is the incarnation that holds the machine's id; 0 of a control plane before 0.2."""

    order: Order = "serve"
    holder: Count = 0
    revocations: Revocations | None = None  # None: as known


class Withdrawal(Struct, frozen=True, kw_only=True):
    id: Short
    incarnation: Count


class Credentials(Struct, frozen=True, kw_only=True):
    """What all edges share: the root of cache keys, hashed API tokens, whose logins count.

    Tokens and issuers are absent where the edge knows them, by `digest` in the query parameter
    `known`. `issuers` is a file of them, empty where there are none; None: they stay as they are.
    """

    secret: Key
    digest: Short
    tokens: Annotated[bytes, Meta(max_length=64 << 20)] | None
    issuers: Annotated[bytes, Meta(max_length=4 << 20)] | None = None


class HostReport(Struct, frozen=True, kw_only=True):
    """What a host has to offer, what runs on it, what ended since its last report that arrived, and
    how its nodes describe themselves."""

    offers: Slot
    running: Annotated[tuple[RunningProcess, ...], Meta(max_length=MAX_PROCESSES)] = ()
    ended: Annotated[tuple[Ended, ...], Meta(max_length=MAX_PROCESSES)] = ()
    members: Annotated[tuple[Member, ...], Meta(max_length=MAX_PROCESSES)] = ()
    revocations: Short = ""  # digest of those that it knows
    is_leaving: bool = False  # it takes no more, and what runs there is to run elsewhere


class HostOrders(Struct, frozen=True, kw_only=True):
    """What a host is to do, by name and idempotent; repeated until a report shows that it was done.

    Orders of a lower term than others before come from a control plane that was replaced.
    """

    term: Count
    start: Annotated[tuple[Launch, ...], Meta(max_length=MAX_PROCESSES)] = ()
    drain: Annotated[tuple[Short, ...], Meta(max_length=MAX_PROCESSES)] = ()
    stop: Annotated[tuple[Short, ...], Meta(max_length=MAX_PROCESSES)] = ()
    revocations: Revocations | None = None  # None: as known


def common_version(theirs: str) -> int | None:
    """Return the highest version that both speak, by the header; None when there is none."""
    numbers = [int(each) for each in theirs[:64].split(",") if each.strip().isdecimal()]
    return max(set(numbers) & set(VERSIONS), default=None)


def versions_text() -> str:
    """Return our versions as the header has them."""
    return ",".join(map(str, VERSIONS))
