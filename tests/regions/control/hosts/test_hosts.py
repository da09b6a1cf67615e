"""Nodes on hosts: orders until they are followed, hosts that are lost, and names that two have."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.regions.control.hosts.hosted import OFFERS, Machine, member
from tests.regions.control.joining import Platform, platform
from tests.regions.control.support import MODEL, new

from skerry_regions.control.machines.calls import ControlRefused
from skerry_regions.control.machines.host import MachineSlots, view
from skerry_regions.control.machines.hosts import HOST_SECONDS, Hosts
from skerry_regions.control.machines.joining import Joining
from skerry_regions.control.machines.messages import AssignmentAnswer, HostOrders, HostReport
from skerry_regions.control.planning.launcher import (
    Ended,
    LaunchFailed,
    RunningProcess,
)
from skerry_regions.process.launch_folder import Slot

POOL = "fra-many"


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Platform]:
    with platform(tmp_path) as made:
        new(
            made.store, "pools", name="many", region="fra", role="decode", model=MODEL,
            runner="toy", launcher="machines", threads=1, replicas=2,
        )  # fmt: skip
        made.look()
        yield made


Join = Callable[..., Machine]


@pytest.fixture
def machine(control: Platform) -> Iterator[Join]:
    """Hosts that join, by name and with what they offer."""
    with ExitStack() as stack:

        def join(name: str, offers: Slot = OFFERS) -> Machine:
            made = Machine(control, name, offers)
            stack.callback(made.link.close)
            return made

        yield join


def start(control: Platform, number: int = 0) -> None:
    assert control.groups is not None
    asyncio.run(control.hosts.start(control.groups[POOL].launch(number)))


def running(control: Platform) -> dict[str, RunningProcess]:
    return dict(asyncio.run(control.hosts.list()).running)


def ended(control: Platform) -> tuple[Ended, ...]:
    return asyncio.run(control.hosts.list()).ended


def test_an_order_is_repeated_until_it_was_followed(control: Platform, machine: Join) -> None:
    host = machine("h")
    assert host.report() == HostOrders(term=1)
    start(control)
    [launch] = host.report().start
    assert (launch.id, launch.owner, launch.slot) == ("fra-many-0", POOL, Slot(cpus=1))
    assert [each.state for each in running(control).values()] == ["starting"]
    assert host.report().start == (launch,), "the answer may have been lost"
    host.follow()
    assert (host.orders.start, running(control)["fra-many-0"].state) == ((), "ready")
    running(control)
    asyncio.run(control.hosts.drain("fra-many-0", patiently=True))
    assert host.report().drain == ("fra-many-0",)
    assert host.report().drain == ("fra-many-0",)
    host.follow()
    assert host.orders.drain == ()
    asyncio.run(control.hosts.stop("fra-many-0"))
    assert host.report().stop == ("fra-many-0",)
    host.follow()
    assert (host.orders, running(control)) == (HostOrders(term=1), {})


def test_what_was_not_started_yet_is_not_ordered_any_more(control: Platform, machine: Join) -> None:
    host = machine("h")
    host.report()
    start(control)
    running(control)
    asyncio.run(control.hosts.drain("fra-many-0", patiently=True))
    assert host.report() == HostOrders(term=1)
    assert running(control) == {}


def test_the_registry_hears_of_nodes_what_the_control_plane_says_they_are(
    control: Platform, machine: Join
) -> None:
    host = machine("h")
    host.report()
    start(control)
    host.report()
    [launch] = host.orders.start
    host.follow()
    [told] = control.registry.members()
    assert told == replace(
        member(host.running["fra-many-0"]), region="fra", residency="eu", role="decode",
        incarnation=launch.incarnation, control="", machine=host.id,
    )  # fmt: skip
    [node] = host.running.values()
    other = replace(member(node), id="fra-decode-0", incarnation=9)
    for each in (other, member(node, address="unix:/x"), member(node, model="@cf/an/other")):
        host.report(members=(each,))
    [told] = control.registry.members()
    assert (told.id, told.address, told.model) == ("fra-many-0", "tcp:10.0.0.7:9000", "")


def test_a_silent_host_is_lost_and_its_nodes_start_elsewhere(
    control: Platform, machine: Join
) -> None:
    one, other = machine("one"), machine("other")
    for each in (one, other):
        each.report()
    for number in range(2):
        start(control, number)
    for each in (one, other):
        each.report()
        each.follow()
        assert len(each.running) == 1, "spread over both"
    [lost] = one.running.values()
    control.clock.now += HOST_SECONDS - 0.1
    other.report()
    assert len(running(control)) == 2
    control.clock.now += 0.2
    [end] = ended(control)
    assert (end.id, end.asked, end.owner) == (lost.id, False, POOL)
    assert end.sentence == f"{lost.id} is lost: its host {one.id} is silent for 5 s"
    assert lost.id not in running(control)
    asyncio.run(control.hosts.start(control.groups[POOL].launch(int(lost.id[-1]))))  # type: ignore[index]
    [again] = other.report().start
    assert (again.id, again.incarnation > lost.incarnation) == (lost.id, True)
    other.follow()

    assert one.report().drain == (), "nobody has looked yet"
    assert running(control)[lost.id].incarnation == again.incarnation
    assert one.report().drain == (lost.id,), "it was only cut off: the later stays"
    assert other.report() == HostOrders(term=1)


def test_what_a_host_that_leaves_runs_is_of_no_spec_that_is_wanted(
    control: Platform, machine: Join
) -> None:
    one, other = machine("one"), machine("other")
    one.report()
    start(control)
    one.report()
    one.follow()
    start(control, 1)
    other.report()
    assert one.report(is_leaving=True).start == (), "what it has not started goes elsewhere"
    seen = running(control)
    assert {id: each.fingerprint for id, each in seen.items()} == {"fra-many-0": ""}
    for number in (1, 2, 3):
        start(control, number)
    assert (one.report(is_leaving=True).start, len(other.report().start)) == ((), 3)
    asyncio.run(control.hosts.drain("fra-many-0", patiently=True))
    assert running(control)["fra-many-0"].state == "draining", "and is not drained once more"
    one.running = {}
    one.report(is_leaving=True)
    assert [*running(control)] == ["fra-many-1", "fra-many-2", "fra-many-3"]
    control.clock.now += HOST_SECONDS - 1
    other.report()
    control.clock.now += 2
    assert ended(control) == (), "it has left, and is not lost"


def test_a_name_goes_above_a_clock_that_was_ahead(control: Platform, machine: Join) -> None:
    host = machine("h")
    host.report()
    start(control)
    host.report()
    host.follow()
    [node] = host.running.values()
    ahead = dataclasses.replace(node, incarnation=1 << 61)
    host.running = {node.id: ahead}
    host.report()
    host.running = {}
    host.report()
    start(control)
    [launch] = host.report().start
    assert launch.incarnation > ahead.incarnation


def test_a_revoked_host_is_out_at_once(control: Platform, machine: Join) -> None:
    host = machine("h")
    host.report()
    start(control)
    host.report()
    host.follow()
    [node] = host.running.values()
    joining = Joining(
        tokens=control.tokens, machines=control.machines, joined=control.joined_machines,
        nodes=control.hosts, registry=control.registry, own=control.own,
    )  # fmt: skip
    asyncio.run(joining.revoke(host.id, actor="test"))
    [told] = control.registry.members()
    assert (told.id, told.state, told.incarnation) == (node.id, "revoked", node.incarnation + 1)
    with pytest.raises(ControlRefused, match="was revoked"):
        host.report()
    [end] = ended(control)
    assert end.lost == f"the host {host.id} was revoked"
    other = machine("other")
    other.report()
    start(control)
    [launch] = other.report().start
    assert launch.incarnation > told.incarnation


def test_a_host_without_room_is_not_overfilled(control: Platform, machine: Join) -> None:
    host = machine("h", Slot(cpus=1))
    host.report()
    start(control)
    with pytest.raises(LaunchFailed, match="none of 1 hosts of fra has room for 1 CPUs"):
        start(control, 1)


def test_a_successor_waits_for_hosts_that_it_expects(control: Platform, machine: Join) -> None:
    host = machine("h")
    host.report()
    start(control)
    host.report()
    host.follow()
    told = HostReport(offers=OFFERS, running=tuple(host.running.values()))

    async def looked() -> tuple[int, int]:
        changes = list[int]()
        hosts = Hosts(
            control.wanted, term=2, clock=control.clock, changed=lambda: changes.append(1),
            expected=[host.id],
        )  # fmt: skip
        looking = asyncio.create_task(hosts.list())
        await asyncio.sleep(0.2)
        assert not looking.done()
        orders, _ = hosts.take(control.machines.get(host.id), told, control.store.desired)
        assert (orders, changes) == (HostOrders(term=2), [1])
        return len((await looking).running), len((await hosts.list()).running)

    assert asyncio.run(asyncio.wait_for(looked(), 60)) == (1, 1)


def test_what_belongs_to_no_pool_any_more_ends(control: Platform, machine: Join) -> None:
    host = machine("h")
    host.report()
    start(control)
    host.report()
    host.follow()
    [node] = host.running.values()
    host.running = {
        "fra-gone-0": dataclasses.replace(node, id="fra-gone-0", owner="fra-gone"),
        "edge-0": dataclasses.replace(node, id="edge-0", owner="edge", kind="edge"),
    }
    assert host.report().drain == ("edge-0", "fra-gone-0")
    assert running(control) == {}


def test_a_host_is_no_node_and_no_node_a_host(control: Platform, machine: Join) -> None:
    host, node = machine("h"), control.joined("n")
    with pytest.raises(ControlRefused, match="a host runs what it is ordered to"):
        host.link.call("GET", "/assignment", AssignmentAnswer)
    with pytest.raises(ControlRefused, match="only a host"):
        node.call("POST", "/host", HostOrders, HostReport(offers=OFFERS))
    node.close()


def test_what_a_host_has_and_its_nodes_take(control: Platform, machine: Join) -> None:
    host = machine("h", Slot(cpus=8, memory=4 << 30, gpus=(0, 1)))
    [known] = control.machines.all()
    assert view(known, control.hosts.host(known.id)).offers is None, "it has not reported"
    host.report()
    for number in range(2):
        start(control, number)
    host.report()
    host.follow()
    shown = view(known, control.hosts.host(known.id))
    assert shown.offers == MachineSlots(cpus=8, memory=4 << 30, gpus=2)
    assert (shown.used, shown.num_nodes) == (MachineSlots(cpus=2, memory=0, gpus=0), 2)
