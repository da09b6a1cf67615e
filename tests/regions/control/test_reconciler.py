"""`Reconciler`: resources written down become processes, on a launcher that starts none."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from tests.clock import Clock
from tests.regions.control.support import MODEL, Tokens, new

from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.desired import Record
from skerry_regions.control.desired.resources import BY_NAME, EDGE_NODE
from skerry_regions.control.desired.statuses import (
    DeploymentStatus,
    EdgeNodeStatus,
    PoolStatus,
    RegionStatus,
)
from skerry_regions.control.desired.store import Store
from skerry_regions.control.errors import UnknownResource
from skerry_regions.control.planning.launcher import (
    DnsSettings,
    EdgeSettings,
    Ended,
    Launch,
    LaunchFailed,
    NodeSettings,
    Observation,
    ProcessKind,
    RelaySettings,
    RunningProcess,
    fingerprint,
)
from skerry_regions.control.planning.wanted import ModelState
from skerry_regions.control.reconcile.commands import edge_command
from skerry_regions.control.reconcile.reconciler import Reconciler
from skerry_regions.process.launch_folder import Slot
from skerry_regions.registry import Member
from skerry_regions.topology.loading import parse_topology

pytestmark = pytest.mark.anyio


KIND_OF: dict[type, ProcessKind] = {
    NodeSettings: "node", EdgeSettings: "edge", RelaySettings: "relays", DnsSettings: "dns",
}  # fmt: skip


class Machine:
    """A launcher whose processes are entries of a dict. They live on when reconcilers change."""

    def __init__(self) -> None:
        self.running: dict[str, RunningProcess] = {}
        self.launches: dict[str, Launch] = {}
        self.ended: list[Ended] = []
        self.members: list[Member] = []
        self.broken = ""
        self.started: list[str] = []

    async def list(self) -> Observation:
        ended, self.ended = tuple(self.ended), []
        return Observation(dict(self.running), ended, tuple(self.members))

    async def start(self, launch: Launch) -> int:
        if self.broken:
            raise LaunchFailed(self.broken)
        assert launch.id not in self.running
        self.started.append(launch.id)
        self.launches[launch.id] = launch
        is_edge = isinstance(launch.settings, EdgeSettings)
        port = launch.port or launch.former_port or 4000
        self.running[launch.id] = RunningProcess(
            id=launch.id,
            owner=launch.owner,
            kind=KIND_OF[type(launch.settings)],
            region=launch.settings.region,
            fingerprint=fingerprint(launch.settings),
            pid=len(self.started),
            state="starting",
            address=f"http://127.0.0.1:{port}" if is_edge else "",
        )
        return port if is_edge else 0

    async def drain(self, id: str, *, patiently: bool) -> None:
        if id in self.running:
            self.become(id, state="draining")

    async def stop(self, id: str) -> None:
        self.die(id)

    def ready(self) -> None:
        """Whoever starts is ready now, and who drains has ended."""
        for id, process in list(self.running.items()):
            if process.state == "starting":
                self.become(id, state="ready")
            elif process.state == "draining":
                self.die(id, asked=True)

    def die(self, id: str, *, asked: bool = False) -> None:
        process = self.running.pop(id)
        self.ended.append(Ended(id=id, owner=process.owner, asked=asked, ran_seconds=1.0))

    def become(self, id: str, **more: Any) -> None:
        self.running[id] = dataclasses.replace(self.running[id], **more)


class World:
    """A store, a machine, and the reconciler between them."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "control.db", clock=Clock(1_700_000_000.0))
        self.tokens = Tokens()
        self.changes = Changes(self.store, self.tokens, b"s" * 32)
        self.machine = Machine()
        self.clock = Clock(0.0)
        self.blocked = self.unknown = ""
        self.reconciler = self.new_reconciler()

    def new_reconciler(self) -> Reconciler:
        return Reconciler(
            self.store, self.changes, self.machine,
            lambda name: ModelState(id=name * (name != self.unknown), blocked=self.blocked),
            wake=asyncio.Event(), rng=Random(1), clock=self.clock, look_seconds=0.005,
        )  # fmt: skip

    def make(self, collection: str, **values: Any) -> Record:
        return new(self.store, collection, **values)

    def patch(self, kind: str, id: str, **values: Any) -> None:
        self.changes.update(BY_NAME[kind], id, values, actor="test", if_match=None)

    def delete(self, kind: str, id: str) -> None:
        self.changes.delete(BY_NAME[kind], id, actor="test", if_match=None)

    async def steps(self, number: int = 1) -> None:
        """Each a look, and what comes of it."""
        for _ in range(number):
            await self.reconciler.step()
            self.machine.ready()
            self.clock.now += 1

    def status(self, kind: str, id: str) -> Any:
        record = self.store.desired.get(BY_NAME[kind], id)
        assert record is not None
        return self.reconciler.status(record)

    def events(self) -> list[str]:
        return [event.reason for event in self.store.events(0, 500)]


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  (a state, not an event)
        await asyncio.sleep(0.002)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    world.make("regions", name="fra", iata="FRA")
    world.make("pools", name="decode", region="fra", role="decode", model=MODEL, replicas=2)
    world.make("edge_nodes", name="edge", region="fra")
    yield world
    world.store.close()


async def test_what_is_wanted_comes_to_run(world: World) -> None:
    await world.steps(1)
    assert sorted(world.machine.running) == ["edge-0", "fra-decode-0", "fra-decode-1"]
    pool = world.status("pool", "fra-decode")
    assert (pool.phase, pool.desired_replicas, pool.ready_replicas) == ("progressing", 2, 0)
    await world.steps(1)
    pool, edge = world.status("pool", "fra-decode"), world.status("edge_node", "edge")
    assert isinstance(pool, PoolStatus)
    assert isinstance(edge, EdgeNodeStatus)
    assert (pool.phase, pool.ready_replicas, pool.updated_replicas) == ("ready", 2, 2)
    assert (edge.phase, edge.url) == ("ready", "http://127.0.0.1:4000")
    region = world.status("region", "fra")
    assert isinstance(region, RegionStatus)
    assert (region.phase, region.ready_nodes, region.desired_nodes) == ("ready", 3, 3)
    assert world.reconciler.revision == world.store.desired.revision
    assert [node.updated for node in world.reconciler.nodes()] == [True] * 3


async def test_a_dead_node_is_started_again_after_a_pause(world: World) -> None:
    await world.steps(2)
    world.machine.die("fra-decode-0")
    world.clock.now += 1
    await world.reconciler.step()
    assert "fra-decode-0" not in world.machine.running, "the pause has just begun"
    world.clock.now += 1
    await world.steps(2)
    assert world.status("pool", "fra-decode").phase == "ready"
    assert "Ended" in world.events()


async def test_a_node_that_keeps_dying_degrades_its_pool(world: World) -> None:
    for _ in range(12):
        await world.steps(1)
        if "fra-decode-0" in world.machine.running:
            world.machine.die("fra-decode-0")
        world.clock.now += 60
    await world.reconciler.step()
    pool = world.status("pool", "fra-decode")
    assert (pool.phase, pool.conditions[0].reason) == ("degraded", "KeepsFailing")


async def test_what_cannot_be_started_is_told_and_tried_again(world: World) -> None:
    world.machine.broken = "no memory"
    await world.steps(1)
    assert world.machine.running == {}
    assert any("no memory" in event.message for event in world.store.events(0, 500))
    world.machine.broken = ""
    world.clock.now += 60
    await world.steps(2)
    assert world.status("pool", "fra-decode").phase == "ready"


async def test_another_reconciler_adopts_what_runs(world: World) -> None:
    await world.steps(2)
    world.reconciler = world.new_reconciler()
    await world.steps(3)
    assert sorted(world.machine.started) == ["edge-0", "fra-decode-0", "fra-decode-1"]
    assert world.status("pool", "fra-decode").phase == "ready"


async def test_fewer_replicas_drain_and_more_start(world: World) -> None:
    await world.steps(2)
    world.patch("pool", "fra-decode", replicas=1)
    await world.reconciler.step()
    states = {id: process.state for id, process in world.machine.running.items()}
    assert states["fra-decode-1"] == "draining"
    assert world.status("pool", "fra-decode").phase == "progressing"
    await world.steps(2)
    assert sorted(world.machine.running) == ["edge-0", "fra-decode-0"]
    world.patch("pool", "fra-decode", replicas=3)
    await world.steps(2)
    assert world.status("pool", "fra-decode").ready_replicas == 3


async def test_a_new_spec_rolls_without_fewer_ready_nodes(world: World) -> None:
    await world.steps(2)
    world.patch("pool", "fra-decode", kv_blocks=64)
    for _ in range(10):
        await world.steps(1)
        ready = [p for p in world.machine.running.values() if p.owner == "fra-decode"]
        assert sum(process.state == "ready" for process in ready) >= 2
    assert world.status("pool", "fra-decode").updated_replicas == 2
    assert len(world.machine.running) == 3


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_node_that_is_to_drain_has_a_ready_successor_first(
    world: World, elsewhere: bool
) -> None:
    await world.steps(2)
    if elsewhere:  # where another machine's process may have the same pid
        for id in ("fra-decode-0", "fra-decode-1"):
            world.machine.become(id, pid=77, slot=Slot(cpus=1))
        await world.reconciler.step()
    assert world.reconciler.drain("fra-decode-0").streams == 0
    await world.reconciler.step()
    assert world.machine.started[3:] == ["fra-decode-2"]
    assert world.machine.running["fra-decode-0"].state == "ready"
    world.machine.ready()
    await world.reconciler.step()
    assert world.machine.running["fra-decode-0"].state == "draining"
    world.machine.ready()
    await world.steps(2)
    assert sorted(world.machine.running) == ["edge-0", "fra-decode-1", "fra-decode-2"]
    assert world.status("pool", "fra-decode").phase == "ready"


async def test_what_is_not_there_cannot_drain(world: World) -> None:
    await world.steps(2)
    with pytest.raises(UnknownResource):
        world.reconciler.drain("fra-decode-7")


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


async def test_a_missing_model_blocks_its_pool(world: World) -> None:
    world.blocked = "it cannot be downloaded"
    await world.steps(2)
    pool = world.status("pool", "fra-decode")
    assert (pool.phase, pool.conditions[0].message) == ("degraded", "it cannot be downloaded")
    world.blocked = ""
    await world.steps(2)
    assert world.status("pool", "fra-decode").phase == "ready"


async def test_a_pool_of_a_model_that_no_catalog_has_is_never_ready(world: World) -> None:
    """Not even with no replicas: a request would wait for it in vain."""
    world.unknown, world.blocked = "@cf/no/such", "5007: No such model"
    nap = {"region": "fra", "role": "hybrid", "max_replicas": 2}
    world.make("pools", name="lost", model="@cf/no/such", **nap)
    world.make("pools", name="nap", model="@cf/a/b", **nap)
    await world.steps(2)
    lost = world.status("pool", "fra-lost")
    assert (lost.phase, lost.conditions[0].message) == ("degraded", "5007: No such model")
    assert world.status("pool", "fra-nap").phase == "ready", "it can be had once it is wanted"


async def test_a_deployment_rolls_its_model_through_its_pools(world: World) -> None:
    world.make("pools", name="chat", region="fra", role="hybrid")
    await world.steps(2)
    assert world.status("pool", "fra-chat").conditions[0].reason == "NoModel"
    world.make("deployments", name="chat", model="@cf/a/a", pools=["fra-chat"])
    await world.steps(8)
    deployment = world.status("deployment", "chat")
    assert isinstance(deployment, DeploymentStatus)
    assert (deployment.phase, deployment.regions) == ("ready", ("fra",))
    assert deployment.endpoints == ("http://127.0.0.1:4000",)
    world.patch("deployment", "chat", model="@cf/b/b")
    await world.steps(8)
    [node] = [view for view in world.reconciler.nodes() if view.owner == "fra-chat"]
    assert (node.model, node.updated) == ("@cf/b/b", True)


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


async def test_a_pool_wakes_for_a_held_request_and_sleeps_again(world: World) -> None:
    world.make(
        "pools", name="nap", region="fra", role="hybrid", model="@cf/n/n", max_replicas=2,
        idle_seconds=5.0,
    )  # fmt: skip
    await world.steps(6)
    assert world.status("pool", "fra-nap").desired_replicas == 0
    asking = Member(id="edge-0", kind="edge", region="fra", held={"@cf/n/n": 1.0})
    world.machine.members = [asking]
    await world.steps(2)
    assert world.status("pool", "fra-nap").ready_replicas == 1
    world.machine.members = []
    world.reconciler = world.new_reconciler()
    await world.steps(2)
    assert world.status("pool", "fra-nap").ready_replicas == 1, "decisions outlive a reconciler"
    await world.steps(8)
    assert world.status("pool", "fra-nap").desired_replicas == 0
    assert [event.message for event in world.store.events(0, 500) if event.reason == "Scaled"] == [
        "from 0 to 1: 1 requests wait for a first node",
        "from 1 to 0: nothing to do",
    ]


async def test_a_held_request_is_its_own_regions_to_serve(world: World) -> None:
    world.make("regions", name="iad", iata="IAD")
    for region in ("fra", "iad"):
        world.make(
            "pools", name="nap", region=region, role="hybrid", model="@cf/n/n", max_replicas=2
        )
    held = {"@cf/n/n": 1.0}
    world.machine.members = [Member(id="e-0", kind="edge", region="iad", held=held)]
    await world.steps(1)
    pools = [world.status("pool", f"{region}-nap").desired_replicas for region in ("fra", "iad")]
    assert pools == [0, 1]
    world.machine.members = [Member(id="e-0", kind="edge", region="elsewhere", held=held)]
    await world.steps(1)
    assert world.status("pool", "fra-nap").desired_replicas == 1, "there is no pool elsewhere"
