"""Machines that joined: what they may say, what they are told to run, and being shut out."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.regions.control.joining import POOL, Platform, announce, platform
from tests.regions.control.support import MODEL, Tokens
from tests.regions.toy_nodes import until

from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.resources import POOL as POOL_KIND
from skerry_regions.control.machines import calls as control_calls
from skerry_regions.control.machines.calls import ControlRefused
from skerry_regions.control.machines.https_registry import HttpsRegistry
from skerry_regions.control.machines.joined import LAST_INCARNATION, admitted, keep_telling_revoked
from skerry_regions.control.machines.joining import Joining
from skerry_regions.control.machines.link import ControlLink, join
from skerry_regions.control.machines.messages import (
    Credentials,
    EdgeAssignment,
    NodeAssignment,
    Orders,
    Paused,
    Withdrawal,
)
from skerry_regions.control.planning.wanted import ModelState, wanted
from skerry_regions.registry import Member, RegistryUnavailable


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Platform]:
    with platform(tmp_path) as control:
        yield control


def test_a_machine_speaks_for_itself_alone_and_decides_not_on_its_place(
    control: Platform,
) -> None:
    link = control.joined("m")
    announce(link, region="iad", residency="us", role="prefill", address="tcp:10.0.0.7:8790")
    [member] = control.registry.members()
    assert (member.region, member.residency, member.role) == ("fra", "eu", "decode")
    for wrong in ({"id": "edge-1"}, {"kind": "edge"}):
        with pytest.raises(ControlRefused, match="cannot speak for"):
            announce(link, **wrong)
    with pytest.raises(ControlRefused, match="cannot reach a unix socket"):
        announce(link, address="unix:/run/skerry.sock")
    with pytest.raises(RegistryUnavailable, match="cannot speak for 'edge-1'"):
        HttpsRegistry(link).withdraw("edge-1", 1)
    link.close()


def test_a_machine_claims_no_model_but_what_it_was_told_to_run(control: Platform) -> None:
    link = control.joined("m")

    def claimed(model: str) -> str:
        announce(link, model=model)
        [member] = control.registry.members()
        return member.model

    assert claimed("") == "", "it has not loaded anything"
    assert claimed("@cf/else/one") == MODEL, "it has not asked yet"
    link.assignment()
    changed(control, model="@cf/else/one")
    assert claimed("@cf/else/one") == MODEL, "it drains before it is told of another"
    link.assignment()
    assert claimed(MODEL) == "@cf/else/one"
    link.close()


def test_a_node_cannot_stand_for_its_region(control: Platform) -> None:
    link = control.joined("m")
    announce(
        link, address="tcp:10.0.0.7:8790", gateway="tcp:10.0.0.7:8792", control="unix:/run/other"
    )
    [member] = control.registry.members()
    assert (member.address, member.gateway) == ("tcp:10.0.0.7:8790", "")
    assert member.control == "", "else the control plane would ask a socket of its own machine"
    link.close()


def test_a_machine_claims_no_zone_when_its_region_is_gone(control: Platform) -> None:
    control.joined("m").close()
    [machine] = control.machines.all()
    lost = dataclasses.replace(machine, region="iad")
    claimed = Member(id=machine.id, kind="node", region="iad", residency="eu")
    assert admitted(lost, claimed, control.store.desired).residency == "global"


def test_a_machine_writes_nothing_that_outlasts_its_revocation(control: Platform) -> None:
    link = control.joined("m")
    registry = HttpsRegistry(link)
    for act in (
        lambda: announce(link, incarnation=LAST_INCARNATION),
        lambda: link.call(
            "POST", "/withdraw", Orders, Withdrawal(id=link.machine, incarnation=LAST_INCARNATION)
        ),
    ):
        with pytest.raises(ControlRefused, match="of machines that were revoked"):
            act()
    beyond: list[dict[str, Any]] = [{"incarnation": 1 << 63}, {"streams": -1}]
    for values in beyond:
        with pytest.raises(ControlRefused, match="The body cannot be read"):
            announce(link, **values)
    assert registry.members() == []
    link.close()


def test_sockets_of_the_control_planes_machine_are_not_told(control: Platform) -> None:
    node = Member(id="n", kind="node", region="fra", address="unix:/run/n.sock")
    edge = Member(id="e", kind="edge", region="fra", address="http://h:1", gateway="unix:/g")
    for member in (node, edge):
        control.registry.announce(member)
    link = control.joined("m")
    assert HttpsRegistry(link).members() == [replace(edge, gateway="")]
    link.close()


def test_a_revoked_machine_is_refused_and_edges_are_told(control: Platform) -> None:
    link, other = control.joined("m"), control.joined("o")
    announce(link, address="tcp:10.0.0.7:8790")
    joining = Joining(
        tokens=control.tokens,
        machines=control.machines,
        joined=control.joined_machines,
        nodes=control.hosts,
        registry=control.registry,
        own=control.own,
    )
    asyncio.run(joining.revoke(link.machine, actor="test"))
    refused = "was revoked; let it join again with a new token"
    for call in (link.assignment, link.renew, lambda: announce(link)):
        with pytest.raises(ControlRefused, match=refused):
            call()
    for registry in (HttpsRegistry(other), control.registry):
        [told] = registry.members()
        assert (told.id, told.state, told.address) == (link.machine, "revoked", "")
    assert control.joined_machines.running(control.registry.members()) == []
    for each in (link, other):
        each.close()


def test_who_was_revoked_is_told_again_to_a_registry_that_forgot_it(control: Platform) -> None:
    control.joined("m").close()
    [machine] = control.machines.all()
    control.machines.revoke(machine.id, actor="test")

    async def scenario() -> None:
        telling = asyncio.create_task(
            keep_telling_revoked(control.registry, control.machines, control.clock, every=0.01)
        )
        try:
            for _ in range(2):
                await until(
                    lambda: [told.id for told in control.registry.members()] == [machine.id]
                )
                control.registry.withdraw(machine.id, LAST_INCARNATION)  # as when it was wiped
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    asyncio.run(scenario())


def changed(control: Platform, **values: Any) -> str:
    """Change the pool; the fingerprint of what is wanted then."""
    changes = Changes(control.store, Tokens(), b"s" * 32)
    changes.update(POOL_KIND, POOL, values, actor="test", if_match=None)
    control.look()
    machine = control.machines.all()[0]
    assignment = control.joined_machines.assignment(machine)
    assert isinstance(assignment, NodeAssignment)
    return assignment.fingerprint


def test_a_machine_is_told_what_its_pool_is(control: Platform) -> None:
    link = control.joined("m")
    assignment = link.assignment()
    assert isinstance(assignment, NodeAssignment)
    settings = assignment.settings
    assert (settings.region, settings.residency, settings.role, settings.model) == (
        "fra", "eu", "decode", MODEL,
    )  # fmt: skip
    link.close()
    kept = ControlLink(control.folder / "m")
    assert kept.last_assignment == assignment, "it may start without the control plane"
    kept.close()


def test_what_another_version_kept_is_no_reason_not_to_start(control: Platform) -> None:
    control.joined("m").close()
    path = control.folder / "m" / "machine.json"
    kept = msgspec.json.decode(path.read_bytes()) | {"assignment": {"type": "node", "new": 1}}
    path.write_bytes(msgspec.json.encode(kept))
    link = ControlLink(control.folder / "m")
    assert link.last_assignment is None
    assert isinstance(link.assignment(), NodeAssignment)
    link.close()


def test_one_machine_at_a_time_begins_anew(control: Platform) -> None:
    links = [control.joined(name) for name in ("a", "b", "c")]
    first = changed(control, kv_blocks=64)
    for link in links:
        assert announce(link, fingerprint=first).order == "serve"
    second = changed(control, kv_blocks=128)
    assert [announce(link, fingerprint=first).order for link in links] == [
        "renew", "serve", "serve",
    ]  # fmt: skip
    announce(links[0], fingerprint=first, state="draining")
    HttpsRegistry(links[0]).withdraw(links[0].machine, 1)
    assert announce(links[1], fingerprint=first).order == "serve"
    announce(links[0], fingerprint=second, state="starting")
    assert announce(links[1], fingerprint=first).order == "serve"
    announce(links[0], fingerprint=second)
    assert announce(links[1], fingerprint=first).order == "renew"
    for link in links:
        link.close()


def test_a_machine_that_was_switched_off_is_not_waited_for(control: Platform) -> None:
    links = [control.joined(name) for name in ("a", "b")]
    first = changed(control, kv_blocks=64)
    announce(links[0], fingerprint=first)
    announce(links[0], fingerprint=first, state="draining")
    HttpsRegistry(links[0]).withdraw(links[0].machine, 1)
    changed(control, kv_blocks=128)
    assert announce(links[1], fingerprint=first).order == "renew"
    for link in links:
        link.close()


def test_a_pool_that_goes_pauses_its_machines(control: Platform) -> None:
    link = control.joined("m")
    fingerprint = changed(control, kv_blocks=64)
    announce(link, fingerprint=fingerprint)
    changes = Changes(control.store, Tokens(), b"s" * 32)
    changes.delete(POOL_KIND, POOL, actor="test", if_match=None)
    control.look()
    assert announce(link, fingerprint=fingerprint).order == "renew"
    assert link.assignment() == Paused(reason=f"the pool {POOL!r} is being deleted")
    link.close()


def test_a_model_that_cannot_be_had_leaves_what_runs(control: Platform) -> None:
    link = control.joined("m")
    fingerprint = changed(control, kv_blocks=64)
    groups = wanted(control.store.desired, lambda name: ModelState(id="", blocked="no such model"))
    control.groups = groups
    assert announce(link, fingerprint=fingerprint).order == "serve"
    assert link.assignment() == Paused(reason="no such model")
    link.close()


def test_before_the_first_look_a_machine_waits(control: Platform) -> None:
    link = control.joined("m")
    control.groups = None
    with pytest.raises(control_calls.ControlAway, match="has just started"):
        link.assignment()
    assert announce(link, fingerprint="old").order == "serve"
    link.close()


def test_an_edge_is_told_its_models_and_shares_credentials(control: Platform) -> None:
    folder = control.folder / "edge"
    join(folder, control.url, control.token(region="fra"), kind="edge")
    link = ControlLink(folder)
    assignment = link.assignment()
    assert isinstance(assignment, EdgeAssignment)
    assert (assignment.region, assignment.residency, assignment.models) == ("fra", "eu", (MODEL,))
    told = link.call("GET", "/credentials", Credentials)
    assert (told.secret, told.tokens) == (b"r" * 32, b"{}")
    assert link.call("GET", f"/credentials?known={told.digest}", Credentials).tokens is None
    link.close()
    node = control.joined("m")
    with pytest.raises(ControlRefused, match="credentials are for edges"):
        node.call("GET", "/credentials", Credentials)
    node.close()
