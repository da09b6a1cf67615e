"""`Reconciler`: edges with their ports, names and certificates, whole regions, relays, zones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.regions.control.reconcile.machines import World
from tests.regions.control.support import MODEL

from skerry_regions.control.desired.resources import BY_NAME, EDGE_NODE
from skerry_regions.control.desired.statuses import (
    EdgeNodeStatus,
)
from skerry_regions.control.planning.launcher import (
    DnsSettings,
    EdgeSettings,
    RelaySettings,
    fingerprint,
)
from skerry_regions.control.reconcile.commands import edge_command
from skerry_regions.topology.loading import parse_topology

pytestmark = pytest.mark.anyio


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  (a state, not an event)
        await asyncio.sleep(0.002)


async def test_an_edge_keeps_its_port_when_its_models_change(world: World) -> None:
    await world.steps(2)
    world.make("pools", name="other", region="fra", role="hybrid", model="@cf/o/o")
    await world.steps(8)
    [edge] = [p for p in world.machine.running.values() if p.kind == "edge"]
    assert world.machine.launches[edge.id].former_port == 4000
    settings = world.machine.launches[edge.id].settings
    assert isinstance(settings, EdgeSettings)
    assert settings.models == (MODEL, "@cf/o/o")


async def test_an_edge_answers_to_the_names_that_it_is_given(world: World) -> None:
    await world.steps(2)
    world.patch("edge_node", "edge", hosts=["ai.example.com", "192.0.2.7"])
    await world.steps(8)
    [edge] = [p for p in world.machine.running.values() if p.kind == "edge"]
    settings = world.machine.launches[edge.id].settings
    assert isinstance(settings, EdgeSettings)
    command = edge_command("e", settings, gateway="g", topology=Path("t"))
    assert command[-2:] == ["--known-host", "ai.example.com,192.0.2.7"]
    world.patch("edge_node", "edge", hosts=[])
    await world.steps(8)
    [edge] = [p for p in world.machine.running.values() if p.kind == "edge"]
    assert world.machine.launches[edge.id].settings == replace(settings, hosts=())


async def test_an_edge_is_started_with_its_certificate_and_called_what_it_is(world: World) -> None:
    await world.steps(2)
    files = {"tls_cert": "/c.pem", "tls_key": "/k.pem"}
    world.patch(
        "edge_node",
        "edge",
        **files,
        placement="nearest",
        console="off",
        public_url="https://ai.test",
    )
    await world.steps(8)
    [edge] = [p for p in world.machine.running.values() if p.kind == "edge"]
    settings = world.machine.launches[edge.id].settings
    assert isinstance(settings, EdgeSettings)
    command = edge_command("e", settings, gateway="g", topology=Path("t"))
    assert command[-4:] == ["--tls-cert", "/c.pem", "--tls-key", "/k.pem"]
    assert command[command.index("--placement") + 1] == "nearest"
    assert command[command.index("--console") + 1] == "off"
    record = world.store.desired.get(EDGE_NODE, "edge")
    assert record is not None
    status = world.reconciler.status(record)
    assert isinstance(status, EdgeNodeStatus)
    assert status.url == "https://ai.test"


async def test_a_region_goes_once_all_of_it_has_drained(world: World) -> None:
    await world.steps(2)
    for kind, id in (("edge_node", "edge"), ("pool", "fra-decode"), ("region", "fra")):
        world.delete(kind, id)
    await world.reconciler.step()
    assert {p.state for p in world.machine.running.values()} == {"draining"}
    assert world.status("region", "fra").phase == "draining"
    assert len(world.store.desired.records) == 3
    await world.steps(3)
    assert world.machine.running == {}
    assert len(world.store.desired.records) == 0


async def test_a_draining_region_runs_nothing_until_it_is_back(world: World) -> None:
    await world.steps(2)
    world.patch("region", "fra", draining=True)
    await world.steps(3)
    assert world.machine.running == {}
    world.patch("region", "fra", draining=False)
    await world.steps(3)
    assert len(world.machine.running) == 3


async def test_at_the_end_edges_go_before_nodes(world: World) -> None:
    await world.steps(2)
    draining = asyncio.create_task(world.reconciler.drain_all())
    for _ in range(200):
        await asyncio.sleep(0.005)
        states = {id: process.state for id, process in world.machine.running.items()}
        if "edge-0" in states:
            assert states["fra-decode-0"] == "ready"
        world.machine.ready()
        if not states:
            break
    await draining
    assert world.machine.running == {}
    assert len(world.store.desired.records) == 3, "what is wanted stays written down"


async def test_at_the_end_no_edge_is_waited_for_as_long_as_otherwise(world: World) -> None:
    """One that steers has the time in which clients hear of it besides."""
    world.make("routing", steer={"policy": "advise", "drain_seconds": 5})
    await world.steps(2)
    draining = asyncio.create_task(world.reconciler.drain_all())
    await until(lambda: world.machine.running["edge-0"].state == "draining")
    world.machine.become("edge-0", seconds=100.0)  # longer, as it drained before
    world.clock.now += 39.0  # of 35 and 5
    await asyncio.sleep(0.05)
    assert "edge-0" in world.machine.running
    world.clock.now += 2.0
    await until(lambda: "edge-0" not in world.machine.running)
    await until(lambda: {p.state for p in world.machine.running.values()} == {"draining"})
    world.machine.ready()
    await draining


async def test_emulated_distances_have_relays_to_the_end(world: World) -> None:
    """They come with the resource, are replaced when paths change, and go after all others."""
    world.make("regions", name="gru", latitude=-23.4, longitude=-46.5)
    world.make("routing", emulate={"rtt": "links"})
    await world.steps(2)
    assert world.status("edge_node", "edge").phase == "ready"
    settings = world.machine.launches["~relays-0"].settings
    assert isinstance(settings, RelaySettings)
    assert [pair[:2] for pair in settings.rtts] == [("fra", "fra"), ("fra", "gru"), ("gru", "gru")]
    world.patch("region", "gru", paths=[{"to": "fra", "rtt": 0.25}])
    await world.steps(4)
    settings = world.machine.launches["~relays-1"].settings
    assert isinstance(settings, RelaySettings)
    assert settings.rtts[1] == ("fra", "gru", 0.25)
    assert [each for each in world.machine.running if "relays" in each] == ["~relays-1"]

    seen: list[set[str]] = []
    draining = asyncio.create_task(world.reconciler.drain_all())
    while not draining.done():
        await asyncio.sleep(0.002)
        seen.append({process.kind for process in world.machine.running.values()})
        world.machine.ready()
    await draining
    assert world.machine.running == {}
    assert [kinds for kinds in seen if kinds and "relays" not in kinds] == []


async def test_an_edge_that_steers_is_another_edge(world: World) -> None:
    await world.steps(2)
    before = world.machine.launches["edge-0"]
    steer = {"policy": "advise"}
    world.make("routing", steer=steer)
    await world.steps(4)
    after = world.machine.launches["edge-1"]
    assert fingerprint(before.settings) != fingerprint(after.settings)
    assert "edge-0" not in world.machine.running
    told = parse_topology(after.topology).steer
    assert (told is not None and told.policy) == "advise"
    assert parse_topology(before.topology).steer is None


async def test_a_zone_that_is_to_be_served_has_a_server(world: World) -> None:
    zone = {"name": "example.test", "nameservers": [{"name": "ns1", "addresses": ["192.0.2.53"]}]}
    world.make("dns_zones", **zone, serve=True, port=5399)
    await world.steps(2)
    settings = DnsSettings(zone="example.test", host="127.0.0.1", port=5399)
    assert world.machine.launches["~dns-example.test-0"].settings == settings
    world.patch("dns_zone", "example.test", ttl=60)  # which it hears of by itself
    await world.steps(2)
    assert "~dns-example.test-1" not in world.machine.launches
    world.patch("dns_zone", "example.test", serve=False)
    await world.steps(3)
    assert not any("dns" in id for id in world.machine.running)
    told = [event.reason for event in world.store.events(0, 500) if event.kind == "dns_zone"]
    assert told == ["Started", "Draining", "Drained"]


async def test_a_token_revoked_elsewhere_is_forgotten(world: World) -> None:
    made = world.changes.create(
        BY_NAME["api_token"], {"name": "ci"}, actor="test", idempotency_key=None
    )
    world.tokens.withdraw(made.record.id)
    await world.steps(1)
    assert world.store.desired.api_tokens() == {}
    assert world.tokens.published == {}
