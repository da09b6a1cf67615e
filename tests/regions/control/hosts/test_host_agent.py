"""What a host does with its orders: of the latest control plane alone, and it says what failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from skerry_regions.control.machines.calls import ControlAway
from skerry_regions.control.machines.messages import HostOrders, HostReport
from skerry_regions.control.planning.launcher import (
    Ended,
    Launch,
    LaunchFailed,
    NodeSettings,
    Observation,
    RunningProcess,
)
from skerry_regions.control.planning.wanted import INSTALLING, ModelState
from skerry_regions.control.reconcile.host_agent import HostAgent
from skerry_regions.process.launch_folder import Slot

pytestmark = pytest.mark.anyio

OFFERS = Slot(cpus=4)
LAUNCH = Launch(
    id="fra-many-0", owner="fra-many", incarnation=7, slot=Slot(cpus=1),
    settings=NodeSettings(
        region="fra", role="hybrid", model="m", runner="toy", threads=1, launcher="machines"
    ),
)  # fmt: skip


@dataclass
class Processes:
    """A launcher in memory, whose drained processes end when a test says."""

    running: dict[str, RunningProcess] = field(default_factory=dict[str, RunningProcess])
    ended: list[Ended] = field(default_factory=list[Ended])
    did: list[str] = field(default_factory=list[str])
    problem: str = ""

    def claim(self, term: int) -> None:
        self.did.append(f"claim {term}")

    async def list(self) -> Observation:
        ended, self.ended = tuple(self.ended), []
        return Observation(dict(self.running), ended)

    async def start(self, launch: Launch) -> int:
        if self.problem:
            raise LaunchFailed(self.problem)
        self.did.append(f"start {launch.id}")
        self.running[launch.id] = RunningProcess(
            id=launch.id, owner=launch.owner, kind="node", region="fra", fingerprint="f", pid=1,
            state="ready", incarnation=launch.incarnation, slot=launch.slot,
        )  # fmt: skip
        return 0

    async def drain(self, id: str, *, patiently: bool) -> None:
        if (process := self.running.get(id)) is not None:
            self.did.append(f"drain {id}")
            self.running[id] = replace(process, state="draining")

    async def stop(self, id: str) -> None:
        if self.running.pop(id, None) is not None:
            self.did.append(f"stop {id}")


class Control:
    """A control plane that gives the orders of a test, one to each report; then the last again."""

    def __init__(self, *orders: HostOrders | Exception) -> None:
        self._orders = [*orders]
        self.reports: list[HostReport] = []

    def __call__(self, report: HostReport) -> HostOrders:
        self.reports.append(report)
        orders = self._orders.pop(0) if len(self._orders) > 1 else self._orders[0]
        if isinstance(orders, Exception):
            raise orders
        return orders


async def obeyed(
    control: Control,
    processes: Processes,
    until: Callable[[], bool],
    *,
    term: int = 1,
    model: str = "",
    leave_seconds: float = 60.0,
) -> None:
    """Run the agent until something is so, and then until it has left."""
    wake, stop = asyncio.Event(), asyncio.Event()
    agent = HostAgent(
        control, processes, lambda name: ModelState(id=name, blocked=model), OFFERS, term=term,
        wake=wake, heard=lambda: None, leave_seconds=leave_seconds,
    )  # fmt: skip
    running = asyncio.create_task(agent.run(stop))
    async with asyncio.timeout(30):
        while not until():
            wake.set()
            await asyncio.sleep(0.005)
        stop.set()
        while not running.done():
            wake.set()
            for id, process in [*processes.running.items()]:
                if process.state == "draining":
                    del processes.running[id]
            await asyncio.sleep(0.005)
    await running


async def test_orders_of_a_term_that_is_over_are_ignored() -> None:
    control, processes = Control(HostOrders(term=4, start=(LAUNCH,))), Processes()
    await obeyed(control, processes, lambda: len(control.reports) > 2, term=5)
    assert (processes.did, processes.running) == ([], {})


async def test_a_later_term_is_claimed_before_its_orders_are_followed() -> None:
    start, over = HostOrders(term=6, start=(LAUNCH,)), HostOrders(term=5, stop=(LAUNCH.id,))
    end = HostOrders(term=6, drain=(LAUNCH.id,))
    control, processes = Control(start, start, over, end), Processes()
    await obeyed(control, processes, lambda: len(control.reports) > 4, term=5)
    assert processes.did[:3] == ["claim 6", f"start {LAUNCH.id}", f"drain {LAUNCH.id}"]
    assert [each.incarnation for each in control.reports[1].running] == [7]


@pytest.mark.parametrize(
    ("model", "problem"), [("m cannot be had", ""), ("", "no room"), (INSTALLING, "")]
)
async def test_what_cannot_be_started_is_said_and_what_is_installed_waited_for(
    model: str, problem: str
) -> None:
    control, processes = Control(HostOrders(term=1, start=(LAUNCH,))), Processes(problem=problem)
    await obeyed(control, processes, lambda: len(control.reports) > 2, model=model)
    told = [each.sentence for report in control.reports for each in report.ended]
    reason = "" if model == INSTALLING else model or problem
    expected = {f"{LAUNCH.id} is lost: it could not be started: {reason}"} if reason else set[str]()
    assert {*told} == expected


async def test_what_ended_is_reported_until_it_was_heard() -> None:
    ended = Ended(id=LAUNCH.id, owner=LAUNCH.owner, asked=False, ran_seconds=3.0, status=-9)
    control = Control(ControlAway("away"), ControlAway("away"), HostOrders(term=1))
    await obeyed(control, Processes(ended=[ended]), lambda: len(control.reports) > 4)
    assert [report.ended for report in control.reports[:4]] == [(ended,)] * 3 + [()]


async def test_who_leaves_is_done_when_its_nodes_are() -> None:
    processes = Processes()
    await processes.start(LAUNCH)
    drain = HostOrders(term=1, drain=(LAUNCH.id,))
    control = Control(HostOrders(term=1), HostOrders(term=1), drain)
    await obeyed(control, processes, lambda: len(control.reports) > 0)
    *_, before, last = control.reports
    assert (before.is_leaving, len(before.running)) == (True, 1)
    assert (last.is_leaving, last.running) == (True, ())


async def test_what_finds_no_other_place_drains_all_the_same() -> None:
    processes = Processes()
    await processes.start(LAUNCH)
    control = Control(HostOrders(term=1))
    await obeyed(control, processes, lambda: len(control.reports) > 0, leave_seconds=0.05)
    assert processes.did[1:] == [f"drain {LAUNCH.id}"]
