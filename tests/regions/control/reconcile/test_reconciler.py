"""`Reconciler`: resources written down become processes, on a launcher that starts none."""

from __future__ import annotations

import pytest
from tests.regions.control.reconcile.machines import World

from skerry_regions.control.desired.statuses import (
    DeploymentStatus,
    EdgeNodeStatus,
    PoolStatus,
    RegionStatus,
)
from skerry_regions.control.errors import UnknownResource
from skerry_regions.process.launch_folder import Slot
from skerry_regions.registry import Member

pytestmark = pytest.mark.anyio


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
