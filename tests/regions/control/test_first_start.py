"""`FirstStart`: a start that someone waits for is over when all is ready, or one did not start."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from skerry_regions.control.planning.launcher import (
    DnsSettings,
    EdgeSettings,
    Ended,
    NodeSettings,
    ProcessKind,
    ProcessState,
    RunningProcess,
    Settings,
    fingerprint,
)
from skerry_regions.control.planning.plan import Group
from skerry_regions.control.reconcile.first_start import FirstStart
from skerry_regions.process.supervisor import FirstStartFailed

pytestmark = pytest.mark.anyio

NODE = NodeSettings(region="fra", role="hybrid", model="m", runner="toy")
EDGE = EdgeSettings(region="fra", host="127.0.0.1", models=("m",))
SERVER = DnsSettings(zone="example.test", host="127.0.0.1", port=53)
GROUPS = {
    "p": Group(id="p", replicas=2, settings=NODE),
    "e": Group(id="e", replicas=1, settings=EDGE),
    "~dns-example.test": Group(id="~dns-example.test", replicas=1, settings=SERVER),
    "lost": Group(id="lost", replicas=1, settings=NODE, blocked="its files are gone"),
}
FAILED = Ended(
    id="p-0", owner="p", asked=False, ran_seconds=0.5, was_ready=False, log="/p-0.log",
    last_words="  no memory",
)  # fmt: skip


def running(*ready: str, state: ProcessState = "ready") -> dict[str, RunningProcess]:
    def process(id: str) -> RunningProcess:
        settings: Settings = EDGE if id.startswith("e") else NODE
        kind: ProcessKind = "edge" if settings is EDGE else "node"
        return RunningProcess(
            id=id, owner=id[0], kind=kind, region="fra", pid=1, state=state,
            fingerprint=fingerprint(settings),
        )  # fmt: skip

    return {id: process(id) for id in ready}


async def is_over(start: FirstStart) -> bool:
    try:
        async with asyncio.timeout(0.01):
            await start.wait()
    except TimeoutError:
        return False
    return True


async def test_it_is_over_when_all_that_can_be_is_ready() -> None:
    start = FirstStart(has_adopted=False)
    for looks in (running("e-0", "p-0"), running("e-0", "p-0", "p-1", state="starting")):
        start.look(GROUPS, looks, ())
        assert not await is_over(start)
    start.look(GROUPS, running("e-0", "p-0", "p-1"), ())
    assert await is_over(start)
    start.look(GROUPS, {}, [FAILED])
    assert await is_over(start), "what ends later is started again"


async def test_a_process_that_was_never_ready_ends_it() -> None:
    start = FirstStart(has_adopted=False)
    start.look(GROUPS, {}, [replace(FAILED, owner="~dns-example.test")])
    start.look(GROUPS, {}, [replace(FAILED, asked=True), replace(FAILED, was_ready=True)])
    assert not await is_over(start)
    start.look(GROUPS, {}, [FAILED])
    with pytest.raises(FirstStartFailed, match=r"p-0 did not start; /p-0.log ends with:\n  no mem"):
        await start.wait()


async def test_where_processes_were_adopted_nothing_but_edges_is_waited_for() -> None:
    start = FirstStart(has_adopted=True)
    start.look(GROUPS, running("p-0"), [FAILED])
    assert not await is_over(start)
    start.look(GROUPS, running("e-0", state="starting"), ())
    assert await is_over(start)
