"""What machines that joined are to run, what they do, and when each may restart.

A pool whose settings change rolls: one of its machines at a time drains and restarts, while the
others serve. A pool that drains is paused on all of them at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.desired.resources import POOL, REGION, RoutingSpec
from skerry_regions.control.errors import Busy, Forbidden
from skerry_regions.control.machines.book import Machine, Machines
from skerry_regions.control.machines.messages import (
    MAX_REASON,
    Announcement,
    Assignment,
    EdgeAssignment,
    NodeAssignment,
    Order,
    Paused,
)
from skerry_regions.control.planning.launcher import NodeSettings, RunningProcess, fingerprint
from skerry_regions.control.planning.plan import START_SECONDS, Group
from skerry_regions.control.planning.platform_topology import platform_topology
from skerry_regions.control.planning.wanted import INSTALLING
from skerry_regions.registry import LAST_INCARNATION, Member, Registry, RegistryUnavailable

REVOKED_LEASE = 7 * 86_400.0  # seconds that edges are sent it: longer than any certificate
NODE_REVOKED_LEASE = 60.0  # the same of nodes of a host
TELL_SECONDS = 60.0  # between two tellings of who was revoked: a registry may lose or forget it

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the control plane wants at one moment."""

    desired: Desired
    groups: Mapping[str, Group]


@dataclass(frozen=True, slots=True)
class JoinedMachine:
    """A machine that has announced itself to this control plane, and what it runs."""

    machine: Machine
    fingerprint: str
    serves: bool  # and is to go on doing so
    is_renewing: bool  # it was ordered to restart, and has not served since
    at: float  # that it reported; by our clock


class JoinedMachines:
    """Lives on one event loop; remembers nothing that machines do not report again."""

    def __init__(self, wanted: Callable[[], Wanted | None], clock: Callable[[], float]) -> None:
        """`wanted` is None until the control plane has looked once."""
        self._wanted = wanted
        self._clock = clock
        self._known: dict[str, JoinedMachine] = {}

    def assignment(self, machine: Machine) -> Assignment:
        """Raises Busy before the first look."""
        if machine.kind == "host":
            raise Forbidden("a host runs what it is ordered to")
        wanted = self._wanted()
        if wanted is None:
            raise Busy("the control plane has just started")
        if machine.kind == "node":
            return node_assignment(wanted, machine)
        return edge_assignment(wanted, machine)

    def order(self, machine: Machine, told: Announcement) -> Order:
        """Return what a machine is to do now that it has reported what it runs."""
        order, before = self._order(machine, told), self._known.get(machine.id)
        serves = told.member.state == "ready" and order == "serve"
        was_renewing = before is not None and before.is_renewing
        self._known[machine.id] = JoinedMachine(
            machine,
            told.fingerprint,
            serves=serves,
            is_renewing=not serves and (order == "renew" or was_renewing),
            at=self._clock(),
        )
        return order

    def withdrawn(self, machine: Machine) -> None:
        """Forget one that ended, unless it was ordered to restart."""
        known = self._known.get(machine.id)
        if known is not None and not known.is_renewing:
            del self._known[machine.id]

    def _order(self, machine: Machine, told: Announcement) -> Order:
        wanted = self._wanted()
        if told.member.state != "ready" or wanted is None:
            return "serve"
        if left(wanted, machine):
            return "renew"
        assignment = self.assignment(machine)
        if isinstance(assignment, Paused):
            return "serve"  # on, as it is: better than nothing
        if told.fingerprint == assignment.fingerprint or self._is_anybody_away(machine):
            return "serve"
        return "renew"

    def _is_anybody_away(self, machine: Machine) -> bool:
        """Return whether another machine of the group has restarted, and does not serve yet."""
        now = self._clock()
        return any(
            not known.serves and now - known.at < START_SECONDS
            for known in self._known.values()
            if known.machine.id != machine.id
            and (known.machine.pool, known.machine.region) == (machine.pool, machine.region)
        )

    def running(self, members: Iterable[Member]) -> list[RunningProcess]:
        """Return the machines that are there, as processes of their pools."""
        return [
            RunningProcess(
                id=member.id,
                owner=known.machine.pool or member.id,
                kind=member.kind,
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
    """Return what a machine says of itself, where it may: it decides on neither its place, its role
    nor its model.

    Raises Forbidden.
    """
    if member.id != machine.id or member.kind != machine.kind:
        raise Forbidden(f"the machine {machine.id!r} cannot speak for {member.id!r}")
    for address in (member.address, member.gateway, member.transfer_address):
        if address.startswith("unix:"):
            raise Forbidden(f"{address}: other machines cannot reach a unix socket")
    if member.incarnation >= LAST_INCARNATION:
        raise Forbidden("the last incarnation is that of machines that were revoked")
    pool = desired.pools().get(machine.pool)
    return replace(
        member,
        machine=machine.id,
        region=machine.region,
        residency=desired.residency_of(machine.region),
        role=pool.role if pool is not None else member.role,
        model=_model_of(machine, desired) if member.model else "",
        control="",  # on that machine, not here
        gateway=member.gateway if machine.kind == "edge" else "",  # only edges stand for a region
        state="failed" if member.state == "revoked" else member.state,
    )


def _model_of(machine: Machine, desired: Desired) -> str:
    """Return what a machine may serve: what it was assigned, also while its pool has another by
    now."""
    return machine.model or desired.model_of(machine.pool) or ""


def reachable(members: Iterable[Member]) -> list[Member]:
    """Return those that another machine can reach; of edges only that they are there."""
    found = []
    for member in members:
        if member.gateway.startswith("unix:"):
            member = replace(member, gateway="")
        if not member.address.startswith("unix:"):
            found.append(member)
    return found


def tell_revoked(registry: Registry, machine: Machine, nodes: Iterable[Member] = ()) -> None:
    """Publish that it is revoked: edges let go of it at once. `nodes` are a host's, whose names
    others have soon. Raises RegistryUnavailable."""
    if machine.kind == "host":
        for node in nodes:
            registry.announce(node, NODE_REVOKED_LEASE)
        return
    gone = Member(
        id=machine.id,
        kind=machine.kind,
        region=machine.region,
        incarnation=LAST_INCARNATION,
        state="revoked",
    )
    registry.announce(gone, REVOKED_LEASE)


async def keep_telling_revoked(
    registry: Registry,
    machines: Machines,
    clock: Callable[[], float],
    *,
    every: float = TELL_SECONDS,
) -> None:
    """Publish each revocation again, without an end, whatever the edges' registry has lost."""
    while True:
        await asyncio.to_thread(lambda: _tell_all_revoked(registry, machines.all(), clock()))
        await asyncio.sleep(every)


def _tell_all_revoked(registry: Registry, machines: Iterable[Machine], now: float) -> None:
    for machine in machines:
        if machine.revoked_at is not None and now - machine.revoked_at < REVOKED_LEASE:
            try:
                tell_revoked(registry, machine)
            except RegistryUnavailable as error:
                logger.warning("edges are not notified that %s was revoked: %s", machine.id, error)


def node_assignment(wanted: Wanted, machine: Machine) -> NodeAssignment | Paused:
    """Return what the desired state makes of a node's machine, without any effect."""
    if reason := left(wanted, machine):
        return Paused(reason=reason)
    group = wanted.groups[machine.pool]
    if group.blocked not in ("", INSTALLING):
        return Paused(reason=group.blocked[:MAX_REASON])
    assert isinstance(group.settings, NodeSettings)
    return NodeAssignment(settings=group.settings, fingerprint=fingerprint(group.settings))


def edge_assignment(wanted: Wanted, machine: Machine) -> EdgeAssignment | Paused:
    """Return the same of an edge's. Other models or another zone are another assignment."""
    if reason := left(wanted, machine):
        return Paused(reason=reason)
    residency, models = wanted.desired.regions()[machine.region].residency, _offered(wanted)
    if not models:
        return Paused(reason="there is no pool with a model to offer")
    routing = wanted.desired.routing()
    differs = () if routing == RoutingSpec() else (routing,)
    told = msgspec.json.encode((machine.region, residency, models, *differs))
    return EdgeAssignment(
        region=machine.region,
        residency=residency,
        models=models,
        topology=msgspec.json.encode(platform_topology(wanted.desired)).decode(),
        fingerprint=hashlib.blake2b(told, digest_size=8).hexdigest(),
    )


def _offered(wanted: Wanted) -> tuple[str, ...]:
    """Return models of all pools that stay."""
    models = {
        group.settings.model
        for id, group in wanted.groups.items()
        if isinstance(group.settings, NodeSettings)
        and group.blocked in ("", INSTALLING)
        and not wanted.desired.is_deleting(POOL, id)
    }
    return tuple(sorted(models))


def left(wanted: Wanted, machine: Machine) -> str:
    """Return why the machine's place is to be left; nothing when it is not. Pure."""
    desired = wanted.desired
    region = desired.regions().get(machine.region)
    if region is None:
        return f"there is no region {machine.region!r}"
    if region.draining or desired.is_deleting(REGION, machine.region):
        return f"the region {machine.region!r} drains"
    if machine.kind == "edge":
        return ""
    if machine.pool not in desired.pools():
        return f"there is no pool {machine.pool!r}"
    if desired.is_deleting(POOL, machine.pool):
        return f"the pool {machine.pool!r} is being deleted"
    if machine.pool not in wanted.groups:
        return f"the pool {machine.pool!r} has no model"
    return ""
