"""The launcher `machines`: nodes on hosts, which are machines that joined and offer slots.

A host reports every half second what it offers and runs, and gets its orders with the answer. A
host that is silent for five seconds is lost, and what ran there is started on others. It may only
be cut off: then its nodes serve on, until edges hear of those that have their names by now. When it
reports again, of two nodes of one name the later stays, and the other drains.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.machines.book import Machine
from skerry_regions.control.machines.host import Host, is_of, may_run
from skerry_regions.control.machines.joined import Wanted
from skerry_regions.control.machines.messages import HostOrders, HostReport
from skerry_regions.control.planning.launcher import (
    Ended,
    Launch,
    NodeSettings,
    Observation,
    RunningProcess,
)
from skerry_regions.control.planning.machine_needs import MachineNeeds, lacking
from skerry_regions.control.planning.placing import HostRoom, place
from skerry_regions.node.announcer import new_incarnation
from skerry_regions.registry import Member

HOST_SECONDS = 5.0  # without a report, before a host is lost
LOOK_SECONDS = 0.1

logger = logging.getLogger(__name__)


class Hosts:
    """See `Launcher`. Lives on one event loop, with the API that hosts call."""

    def __init__(
        self,
        wanted: Callable[[], Wanted | None],
        *,
        term: int,
        clock: Callable[[], float],
        changed: Callable[[], None],
        expected: Iterable[str] = (),
    ) -> None:
        """`clock` is monotonic, in seconds. `changed` is called when a report says something new.
        What `expected` hosts run is waited for once: it must not be started a second time."""
        self._wanted = wanted
        self._term = term
        self._clock = clock
        self._changed = changed
        self._expected = frozenset(expected)
        self._began = clock()
        self._hosts: dict[str, Host] = {}
        self._places: dict[str, Host] = {}  # by process, as of the last look
        self._ended: list[Ended] = []
        self._highest: dict[str, int] = {}  # incarnation of each name

    # --- what hosts report -----------------------------------------------------------------------

    def take(
        self, machine: Machine, told: HostReport, desired: Desired
    ) -> tuple[HostOrders, list[Member]]:
        """Take in a report; return what the host is to do, and what the registry is to know of its
        nodes."""
        host = self._hosts.get(machine.id)
        if host is None:
            host = self._hosts[machine.id] = Host(machine, told.offers, self._clock())
            logger.info("the host %s is there", machine.id)
        before = {(each.id, each.state) for each in host.running.values()}
        host.offers, host.is_leaving, host.heard_at = told.offers, told.is_leaving, self._clock()
        host.running = {each.id: each for each in told.running if is_of(each, machine, desired)}
        for each in host.running.values():
            self._highest[each.id] = max(each.incarnation, self._highest.get(each.id, 0))
        self._ended += told.ended
        over = host.running.keys() | {each.id for each in told.ended}
        host.launches = {id: each for id, each in host.launches.items() if id not in over}
        host.drains = {id for id in host.drains if id in host.running and not _drains(host, id)}
        host.stops &= host.running.keys()
        if told.ended or before != {(each.id, each.state) for each in host.running.values()}:
            self._changed()
        if told.is_leaving:
            host.launches = {}  # others are started elsewhere
            if not told.running:
                del self._hosts[machine.id]
                logger.info("the host %s has left", machine.id)
        orders = HostOrders(
            term=self._term,
            start=tuple(host.launches.values()),
            drain=(*sorted(host.drains), *_unknown(told.running, host)),
            stop=tuple(sorted(host.stops)),
        )
        return orders, self._members(host, told.members, desired)

    def _members(self, host: Host, told: Iterable[Member], desired: Desired) -> list[Member]:
        """Return what a host says of its nodes, where it may: it decides on neither their place,
        their role nor their model. Nothing before the first look, which says what those are."""
        if (wanted := self._wanted()) is None:
            return []
        found = list[Member]()
        for member in told:
            process = host.running.get(member.id)
            group = None if process is None else wanted.groups.get(process.owner)
            if process is None or group is None or not isinstance(group.settings, NodeSettings):
                continue
            is_local = any(
                address.startswith("unix:") for address in (member.address, member.transfer_address)
            )
            if is_local or member.kind != "node" or member.state == "revoked":
                continue
            models = host.models | {group.settings.model}
            found.append(
                replace(
                    member,
                    machine=host.machine.id,
                    region=host.machine.region,
                    residency=desired.residency_of(host.machine.region),
                    incarnation=process.incarnation,
                    role=group.settings.role,
                    model=member.model if member.model in models else "",
                    control="",
                    gateway="",
                )
            )
        return found

    def forget(self, machine: str) -> list[Member]:
        """Count a host as lost at once; return the records of its nodes that edges need."""
        host = self._hosts.pop(machine, None)
        if host is None:
            return []
        self._lose(host, f"the host {machine} was revoked")
        gone = list[Member]()
        for each in host.running.values():
            above = self._highest[each.id] = each.incarnation + 1
            gone.append(
                Member(
                    id=each.id, kind="node", region=each.region, incarnation=above, state="revoked"
                )
            )
        self._changed()
        return gone

    def needs(self, idle_seconds: float) -> dict[str, MachineNeeds]:
        """Return by region what hosts lack for nodes of `machines`, and who of them had no node for
        so long; nothing before all that are expected could report."""
        if (wanted := self._wanted()) is None or self._expected:
            return {}
        hosts, now = [*self._hosts.values()], self._clock()
        there = Counter(each.owner for host in hosts for each in host.processes())
        rooms, idle = dict[str, list[HostRoom]](), dict[str, list[str]]()
        for host in hosts:
            host.idle_since = None if host.processes() else (host.idle_since or now)
            region, pool = host.machine.region, wanted.desired.pools().get(host.machine.pool)
            if not host.is_leaving and (pool is None or pool.launcher == "machines"):
                rooms.setdefault(region, []).append(host.room(host.machine.pool))
                if host.idle_since is not None and now - host.idle_since >= idle_seconds:
                    idle.setdefault(region, []).append(host.machine.id)
        lacks = lacking(wanted.groups, there, rooms)
        return {
            region: MachineNeeds(
                lacking=lacks.get(region, ()), idle=tuple(sorted(idle.get(region, ())))
            )
            for region in lacks.keys() | idle.keys()
        }

    def host(self, machine: str) -> Host | None:
        """Return what a machine reports, if it is a host that is there."""
        return self._hosts.get(machine)

    def hostnames(self) -> set[str]:
        """Return those of the hosts that are there."""
        return {host.machine.hostname for host in self._hosts.values()}

    # --- the launcher ----------------------------------------------------------------------------

    async def list(self) -> Observation:
        await self._settle()
        for id, host in [*self._hosts.items()]:
            if self._clock() - host.heard_at > HOST_SECONDS:
                del self._hosts[id]
                self._lose(host, f"its host {id} is silent for {HOST_SECONDS:g} s")
        self._places, running = {}, dict[str, RunningProcess]()
        for host in self._hosts.values():
            for process in host.processes():
                other = running.get(process.id)
                if other is None or other.incarnation < process.incarnation:
                    if other is not None:
                        self._places[process.id].drains.add(process.id)
                    self._places[process.id], running[process.id] = host, process
                else:
                    host.drains.add(process.id)
        ended, self._ended = tuple(self._ended), []
        return Observation(running, ended)

    async def start(self, launch: Launch) -> int:
        settings = launch.settings
        assert isinstance(settings, NodeSettings)
        here = [
            host
            for host in self._hosts.values()
            if may_run(host.machine, launch)
            and not host.is_leaving
            and launch.id not in host.running
        ]
        machine, slot = place(settings, [host.room(launch.owner) for host in here])
        incarnation = new_incarnation(above=self._highest.get(launch.id, 0))
        self._highest[launch.id] = incarnation
        host = self._hosts[machine]
        host.launches[launch.id] = dataclasses.replace(launch, incarnation=incarnation, slot=slot)
        host.models.add(settings.model)
        return 0

    async def drain(self, id: str, *, patiently: bool) -> None:
        if (host := self._places.get(id)) is not None and host.launches.pop(id, None) is None:
            host.drains.add(id)

    async def stop(self, id: str) -> None:
        if (host := self._places.get(id)) is not None and host.launches.pop(id, None) is None:
            host.stops.add(id)

    async def _settle(self) -> None:
        until = self._began + HOST_SECONDS
        while self._expected - self._hosts.keys() and self._clock() < until:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        self._expected = frozenset()

    def _lose(self, host: Host, why: str) -> None:
        logger.warning("the host %s is lost, with %d nodes", host.machine.id, len(host.running))
        for each in host.processes():
            self._ended.append(
                Ended(
                    id=each.id,
                    owner=each.owner,
                    asked=each.state == "draining",
                    ran_seconds=each.seconds,
                    was_ready=each.state != "starting",
                    lost=why,
                )
            )


def _drains(host: Host, id: str) -> bool:
    return host.running[id].state == "draining"


def _unknown(told: Iterable[RunningProcess], host: Host) -> list[str]:
    """Return what runs on a host and belongs to no pool of its region any more."""
    return sorted(
        each.id for each in told if each.id not in host.running and each.state != "draining"
    )
