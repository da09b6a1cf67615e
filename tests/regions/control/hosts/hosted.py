"""A host as a control plane meets it: it joins, reports, and does what it is ordered to."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace
from tests.regions.control.joining import Platform
from tests.regions.control.support import MODEL

from skerry_regions.control.machines.link import ControlLink, join
from skerry_regions.control.machines.messages import HostOrders, HostReport
from skerry_regions.control.planning.launcher import Launch, RunningProcess, fingerprint
from skerry_regions.process.launch_folder import Slot
from skerry_regions.registry import Member

OFFERS = Slot(cpus=4, memory=8 << 30)


class Machine:
    """A host that does what it is ordered to, one report at a time."""

    def __init__(self, control: Platform, name: str, offers: Slot = OFFERS) -> None:
        folder = control.folder / name
        token = control.token(region="fra", roles=["host"])
        join(folder, control.url, token, kind="host", clock=control.clock)
        self.link = ControlLink(folder, clock=control.clock)
        self.id = self.link.machine
        self.offers = offers
        self.running: dict[str, RunningProcess] = {}
        self.orders = HostOrders(term=0)

    def report(self, **values: Any) -> HostOrders:
        told = HostReport(offers=self.offers, running=tuple(self.running.values()), **values)
        orders = self.link.call("POST", "/host", HostOrders, told)
        self.orders = replace(orders, revocations=None)
        return self.orders

    def follow(self) -> None:
        """Do what the last answer ordered, and report it."""
        for id in self.orders.stop:
            self.running.pop(id, None)
        for id in self.orders.drain:
            self.running[id] = dataclasses.replace(self.running[id], state="draining")
        for launch in self.orders.start:
            self.running[launch.id] = process(launch)
        self.report(members=tuple(map(member, self.running.values())))


def process(launch: Launch) -> RunningProcess:
    return RunningProcess(
        id=launch.id, owner=launch.owner, kind="node", region="fra", pid=7, state="ready",
        fingerprint=fingerprint(launch.settings), incarnation=launch.incarnation, slot=launch.slot,
    )  # fmt: skip


def member(process: RunningProcess, **values: Any) -> Member:
    said = Member(
        id=process.id, kind="node", region="iad", residency="us", role="prefill", model=MODEL,
        address="tcp:10.0.0.7:9000", state="ready", incarnation=3, control="unix:/here",
    )  # fmt: skip
    return replace(said, **values)
