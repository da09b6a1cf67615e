"""The registry: nodes and edges announce themselves under a lease, all processes read it.

A lease is renewed while its owner lives; when it lapses the record is gone for all readers. Leases
are durations: a driver keeps their time by one clock, that of the store, so machines need not agree
on the hour. Readers keep their last reading when the store is away: it stops no request.

Of two processes of one name the later holds it: its incarnation is higher, which a store compares
and writes in one step. The earlier, which may only have been asleep, learns so and ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Protocol

from msgspec import Meta, Struct
from msgspec.structs import replace

from skerry_regions.zones import GLOBAL

Text = Annotated[str, Meta(max_length=256)]
NumericBuild = Annotated[str, Meta(max_length=256)]  # of a runner; see `ModelRunner`
Amount = Annotated[float, Meta(ge=0.0, le=1e9)]
ByModel = Annotated[dict[Text, Amount], Meta(max_length=1024)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]  # what every store can keep

LEASE_SECONDS = 3.0
RENEW_SECONDS = 0.5
LAST_INCARNATION = (1 << 63) - 1  # of a record that nothing replaces


class Member(Struct, frozen=True, kw_only=True):
    """One node or edge as it describes itself."""

    id: Text
    kind: Literal["node", "edge"]
    region: Text
    residency: Text = GLOBAL  # the zone of its region
    machine: Text = ""  # that it runs on, by the certificate of its links; empty: unknown
    pid: Count = 0
    incarnation: Count = 0  # grows each time it starts
    address: Text = ""  # of a node's frames, or an edge's URL
    public_url: Annotated[str, Meta(max_length=300)] = ""  # of an edge, where it is not `address`
    gateway: Text = ""  # where an edge takes streams for the nodes of its region
    transfer_address: Text = ""  # where a node takes KV blocks
    control: Text = ""  # of a node's own HTTP API, which its machine alone reaches
    role: Literal["prefill", "decode", "hybrid"] = "hybrid"
    model: Text = ""
    runner: Text = ""
    parallel: Text = ""  # how its model is divided over ranks, and why; empty: it is not
    numeric_build: NumericBuild = ""
    kv_format: Text = ""
    kv_bytes_per_token: float = 0.0
    cache_tokens: Count = 0
    batch_invariant: bool = False
    state: Literal["starting", "ready", "draining", "failed", "revoked"] = "starting"
    streams: Count = 0
    queue_seconds: float = 0.0  # of prompts that wait at a node
    held: ByModel = {}  # requests that wait at an edge for a first node of their model
    ttft: ByModel = {}  # seconds, p95 of an edge's last minute
    itl: ByModel = {}  # seconds, p95 of an edge's last minute


class RegistryUnavailable(Exception):
    """The store cannot be reached now; go on with what was read last."""


class Registry(Protocol):
    """A store of members. Every driver passes one conformance suite."""

    def announce(self, member: Member, lease_seconds: float = LEASE_SECONDS) -> int:
        """Add or replace a member and renew its lease; return the incarnation that holds the id.
        An older one never replaces a newer one. Raises RegistryUnavailable."""
        ...

    def withdraw(self, member_id: str, incarnation: int) -> None:
        """Remove a member at once, unless a newer incarnation has taken its id."""
        ...

    def members(self) -> list[Member]:
        """Return members whose lease runs, by id. Raises RegistryUnavailable."""
        ...

    def close(self) -> None: ...


def with_placed(
    read: Sequence[Member], placed: Sequence[Member], said: Mapping[str, Member | None]
) -> list[Member]:
    """Return the registry's members, and those that a topology places and that are not in it.

    A placed node is believed what it `said` when it was greeted, where the registry knows nothing
    of this start of it; one that says nothing is there, and takes no streams yet.
    """
    members = {member.id: member for member in read}
    for each in placed:
        word, known = said.get(each.id), members.get(each.id)
        if word is None or word.id != each.id:
            members.setdefault(each.id, each)
        elif known is None or known.incarnation < word.incarnation:
            members[each.id] = replace(word, address=each.address)
    return list(members.values())
