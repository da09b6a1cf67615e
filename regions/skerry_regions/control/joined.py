"""What machines that joined are to run, what they do, and when each may begin anew.

A pool whose settings change rolls: one of its machines at a time drains and begins anew, while the
others serve. A pool that drains is paused on all of them at once.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from skerry_regions.control.desired import Desired
from skerry_regions.control.errors import Busy, Forbidden
from skerry_regions.control.launcher import NodeSettings, Running, fingerprint
from skerry_regions.control.machines import Machine
from skerry_regions.control.plan import START_SECONDS, Group
from skerry_regions.control.resources import POOL, REGION
from skerry_regions.control.wanted import topology_of
from skerry_regions.machine_messages import (
    Announcement,
    Assignment,
    EdgeAssignment,
    NodeAssignment,
    Order,
    Paused,
)
from skerry_regions.registry import Member, Registry, RegistryUnavailable

REVOKED_LEASE = 7 * 86_400.0  # seconds that edges are told of a machine that was revoked
LAST_INCARNATION = (1 << 63) - 1  # nothing replaces it

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the control plane wants at one moment."""

    desired: Desired
    groups: Mapping[str, Group]


@dataclass(frozen=True, slots=True)
class Known:
    """A machine that has announced itself to this control plane, and what it runs."""

    machine: Machine
    fingerprint: str
    serves: bool  # and is to go on doing so
    is_renewing: bool  # it was told to begin anew, and has not served since
    at: float  # that it told us; by our clock


class JoinedMachines:
    """Lives on one event loop; remembers nothing that machines do not tell again."""

    def __init__(self, wanted: Callable[[], Wanted | None], clock: Callable[[], float]) -> None:
        """`wanted` is None until the control plane has looked once."""
        self._wanted = wanted
        self._clock = clock
        self._known: dict[str, Known] = {}

    def assignment(self, machine: Machine) -> Assignment:
        """Raises Busy before the first look."""
        wanted = self._wanted()
        if wanted is None:
            raise Busy("the control plane has just started")
        if machine.kind == "node":
            return node_assignment(wanted, machine)
        return edge_assignment(wanted, machine)

    def order(self, machine: Machine, told: Announcement) -> Order:
        """What a machine is to do now that it has told what it runs."""
        order, before = self._order(machine, told), self._known.get(machine.id)
        serves = told.member.state == "ready" and order == "serve"
        was_renewing = before is not None and before.is_renewing
        self._known[machine.id] = Known(
            machine,
            told.fingerprint,
            serves=serves,
            is_renewing=not serves and (order == "renew" or was_renewing),
            at=self._clock(),
        )
        return order

    def withdrawn(self, machine: Machine) -> None:
        """It ended. One that was told to begin anew is waited for."""
        known = self._known.get(machine.id)
        if known is not None and not known.is_renewing:
            del self._known[machine.id]

    def _order(self, machine: Machine, told: Announcement) -> Order:
        if told.member.state != "ready" or self._wanted() is None:
            return "serve"
        assignment = self.assignment(machine)
        if isinstance(assignment, Paused):
            return "renew"
        if told.fingerprint == assignment.fingerprint or self._is_anybody_away(machine):
            return "serve"
        return "renew"

    def _is_anybody_away(self, machine: Machine) -> bool:
        """Whether another machine of the group has begun anew, and does not serve yet."""
        now = self._clock()
        return any(
            not known.serves and now - known.at < START_SECONDS
            for known in self._known.values()
            if known.machine.id != machine.id
            and (known.machine.pool, known.machine.region) == (machine.pool, machine.region)
        )

    def running(self, members: Iterable[Member]) -> list[Running]:
        """The machines that are there, as processes of their pools."""
        return [
            Running(
                id=member.id,
                owner=known.machine.pool or member.id,
                kind=known.machine.kind,
                region=known.machine.region,
                fingerprint=known.fingerprint,
                pid=member.pid,
                state=state,
                streams=member.streams,
                address=member.address,
            )
            for member in members
            if (known := self._known.get(member.id)) is not None
            and (state := member.state) != "revoked"
        ]

    def forget(self, machine: str) -> None:
        self._known.pop(machine, None)


def admitted(machine: Machine, member: Member, desired: Desired) -> Member:
    """What a machine says of itself, where it may: it decides neither on its place nor its role.

    Raises Forbidden.
    """
    if member.id != machine.id or member.kind != machine.kind:
        raise Forbidden(f"the machine {machine.id!r} cannot speak for {member.id!r}")
    for address in (member.address, member.gateway, member.transfer_address):
        if address.startswith("unix:"):
            raise Forbidden(f"{address}: other machines cannot reach a unix socket")
    region = desired.regions().get(machine.region)
    pool = desired.pools().get(machine.pool)
    return replace(
        member,
        region=machine.region,
        residency=region.residency if region is not None else member.residency,
        role=pool.role if pool is not None else member.role,
        state="failed" if member.state == "revoked" else member.state,
    )


def reachable(members: Iterable[Member]) -> list[Member]:
    """Those that another machine can reach; of edges only that they are there."""
    found = []
    for member in members:
        if member.gateway.startswith("unix:"):
            member = replace(member, gateway="")
        if not member.address.startswith("unix:"):
            found.append(member)
    return found


def tell_revoked(registry: Registry, machine: Machine) -> None:
    """Edges let go of it at once. Raises RegistryUnavailable."""
    gone = Member(
        id=machine.id,
        kind=machine.kind,
        region=machine.region,
        incarnation=LAST_INCARNATION,
        state="revoked",
    )
    registry.announce(gone, REVOKED_LEASE)


def tell_all_revoked(registry: Registry, machines: Iterable[Machine], now: float) -> None:
    """Those of late, again: a registry may have lost it."""
    for machine in machines:
        if machine.revoked_at is not None and now - machine.revoked_at < REVOKED_LEASE:
            try:
                tell_revoked(registry, machine)
            except RegistryUnavailable as error:
                logger.warning("edges are not told that %s was revoked: %s", machine.id, error)


def node_assignment(wanted: Wanted, machine: Machine) -> NodeAssignment | Paused:
    """Pure."""
    desired, pool = wanted.desired, machine.pool
    if (reason := _paused(desired, machine)) or (
        reason := _pool_paused(desired, pool, wanted.groups.get(pool))
    ):
        return Paused(reason=reason)
    settings = wanted.groups[pool].settings
    assert isinstance(settings, NodeSettings)
    return NodeAssignment(settings=settings, fingerprint=fingerprint(settings))


def edge_assignment(wanted: Wanted, machine: Machine) -> EdgeAssignment | Paused:
    """Pure. Another model, region or zone is another assignment."""
    desired = wanted.desired
    region = desired.regions().get(machine.region)
    models = sorted(
        {
            group.settings.model
            for id, group in wanted.groups.items()
            if isinstance(group.settings, NodeSettings)
            and group.settings.model
            and not desired.is_deleting(POOL, id)
        }
    )
    reason = _paused(desired, machine) or ("" if models else "there is no pool with a model")
    if region is None or reason:
        return Paused(reason=reason)
    assignment = EdgeAssignment(
        region=machine.region,
        residency=region.residency,
        models=tuple(models),
        topology=topology_of(desired).decode(),
        fingerprint="",
    )
    digest = hashlib.blake2b(msgspec.json.encode(assignment), digest_size=8).hexdigest()
    return replace(assignment, fingerprint=digest)


def _paused(desired: Desired, machine: Machine) -> str:
    """Why nothing runs in the machine's region; nothing when something may."""
    region = desired.regions().get(machine.region)
    if region is None:
        return f"there is no region {machine.region!r}"
    if region.draining or desired.is_deleting(REGION, machine.region):
        return f"the region {machine.region!r} drains"
    return ""


def _pool_paused(desired: Desired, pool: str, group: Group | None) -> str:
    if pool not in desired.pools():
        return f"there is no pool {pool!r}"
    if desired.is_deleting(POOL, pool):
        return f"the pool {pool!r} is being deleted"
    if group is None or not isinstance(group.settings, NodeSettings) or not group.settings.model:
        return f"the pool {pool!r} has no model"
    return ""
