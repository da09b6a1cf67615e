"""What a call of a machine's is answered from, once it was let in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from skerry_regions.control.api.requests import body_of
from skerry_regions.control.desired.store import Store
from skerry_regions.control.errors import Malformed
from skerry_regions.control.machines.authority import Authority
from skerry_regions.control.machines.book import Machine, Machines
from skerry_regions.control.machines.hosts import Hosts
from skerry_regions.control.machines.joined import JoinedMachines, admitted
from skerry_regions.control.machines.messages import Credentials, Revocations
from skerry_regions.registry import Member, Registry

T = TypeVar("T")
Admit = Callable[[Machine, Member], Member]
"""A member as a machine may announce it. Raises Forbidden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineControl:
    """What the machines' API works on."""

    store: Store
    authority: Authority
    machines: Machines
    joined: JoinedMachines
    nodes: Hosts
    registry: Registry
    cluster_key: bytes
    credentials: Callable[[], Credentials]  # of edges
    revocations: Callable[[], Revocations]
    hosts: frozenset[str] = frozenset()  # that strangers may call it, beside what all machines do
    admit: Admit | None = None  # None: what it says of itself, where it may

    def revocations_beyond(self, known: str) -> Revocations | None:
        """Return who was revoked; None where that is known, by its digest."""
        revocations = self.revocations()
        return None if revocations.digest == known else revocations

    def admitted(self, machine: Machine, member: Member) -> Member:
        if self.admit is not None:
            return self.admit(machine, member)
        return admitted(machine, member, self.store.desired)


@dataclass(frozen=True, slots=True)
class MachineCall:
    """A call that was let in."""

    control: MachineControl
    machine: str  # id; empty of one that joins
    request: Request

    async def body(self, type_: type[T]) -> T:
        """Raises Malformed or TooLarge."""
        try:
            return msgspec.json.decode(await body_of(self.request), type=type_)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(f"The body cannot be read: {error}") from None


MachineHandler = Callable[[MachineCall], Awaitable[Response]]
