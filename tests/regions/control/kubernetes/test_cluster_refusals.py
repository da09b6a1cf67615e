"""Nodes on pods when the cluster refuses: terms, races, faults, rights, tokens, long lists."""

from __future__ import annotations

import asyncio

import pytest
from tests.regions.control.kubernetes.pods import NODES, SET, World

from skerry_regions.control.kubernetes import pod_launcher
from skerry_regions.control.kubernetes.api_server import (
    ApiError,
)
from skerry_regions.control.kubernetes.pool_pods import TERM
from skerry_regions.process.local_launcher import Deposed

pytestmark = pytest.mark.anyio


async def test_a_later_term_fences(world: World) -> None:
    await world.until_ready(*NODES[:2])
    former, world.launcher = world.launcher, world.made(term=2)
    await world.steps(2)
    assert world.set()["metadata"]["annotations"][TERM] == "2"
    version = world.set()["metadata"]["resourceVersion"]
    world.want(replicas=3)
    world.control.look()
    with pytest.raises(Deposed, match="its term is 2, ours 1"):
        await former.look()
    assert world.set()["metadata"]["resourceVersion"] == version
    await world.until_ready(*NODES[:3])


async def test_what_another_changes_meanwhile_is_read_again(world: World) -> None:
    await world.until_ready(*NODES[:2])
    others = iter(range(3))

    def change(method: str, kind: str) -> None:
        if (method, kind) == ("PUT", "statefulsets") and next(others, None) is not None:
            notes = world.set()["metadata"]["annotations"]
            world.cluster._store("statefulsets", SET, {**world.set()})
            notes["others.example/at"] = world.set()["metadata"]["resourceVersion"]

    world.cluster.before = change
    world.want(replicas=3)
    await world.until_ready(*NODES[:3])
    assert world.set()["spec"]["replicas"] == 3
    assert "others.example/at" in world.set()["metadata"]["annotations"], "theirs stays"


async def test_a_later_term_that_comes_between_is_not_written_over(world: World) -> None:
    await world.until_ready(*NODES[:2])

    def depose(method: str, kind: str) -> None:
        if (method, kind) == ("PUT", "statefulsets"):
            made = world.set()
            made["metadata"]["annotations"] = made["metadata"]["annotations"] | {TERM: "7"}
            world.cluster._store("statefulsets", SET, made)

    world.cluster.before = depose
    world.want(replicas=3)
    with pytest.raises(Deposed, match="its term is 7"):
        await world.steps(2)
    assert world.set()["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ((429, {"retry-after": "7"}), "Kubernetes refuses (429): an apiserver that is busy"),
        ((500, {}), "Kubernetes refuses (500)"),
        ((503, {}), "Kubernetes refuses (503)"),
    ],
)
async def test_faults_are_waited_out(
    world: World, fault: tuple[int, dict[str, str]], told: str
) -> None:
    world.control.look()
    world.cluster.faults = [fault]
    with pytest.raises(ApiError, match=told.replace("(", r"\(").replace(")", r"\)")) as raised:
        await world.step()
    assert raised.value.retry_after == (7.0 if fault[0] == 429 else 0.0)
    pause = world.launcher._failed(raised.value)
    assert pause >= raised.value.retry_after
    await world.launcher.list()
    await world.until_ready(*NODES[:2])
    assert world.cluster.of("statefulsets").keys() == {"skerry-control", SET}


async def test_it_goes_on_by_itself_when_the_cluster_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_launcher, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(world.launcher._backoff, "failed", lambda ran: 0.0)
    world.control.look()
    assert world.control.groups is not None
    world.cluster.faults = [(503, {})] * 3 + [(401, {}), (403, {})]
    await world.launcher.start(world.control.groups["fra-many"].launch(0))
    running = asyncio.create_task(world.launcher.run())
    try:
        while world.cluster.faults:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        [ended] = (await world.launcher.list()).ended
        assert "503" in ended.sentence, "the pool says why, and its node is started again"
        await world.launcher.start(world.control.groups["fra-many"].launch(0))
        while ("statefulsets", SET) not in world.cluster.objects:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert world.set()["spec"]["replicas"] == 1


async def test_a_missing_right_is_what_the_pool_says(world: World) -> None:
    world.cluster.rights.remove(("create", "statefulsets"))
    with pytest.raises(ApiError) as raised:
        await world.step()
    world.launcher._failed(raised.value)
    [ended] = [each for each in (await world.launcher.list()).ended if each.id == NODES[0]]
    assert ended.sentence == (
        'fra-many-0 is lost: Kubernetes refuses (403): cannot create resource "statefulsets"'
    )


async def test_a_token_is_read_for_each_call(world: World) -> None:
    await world.until_ready(*NODES[:2])
    world.cluster.token = "second"
    with pytest.raises(ApiError, match="401"):
        await world.step()
    world.api.access.token_file.write_text("second\n")
    await world.steps(2)
    world.api.access.token_file.unlink()
    with pytest.raises(ApiError, match="no token for Kubernetes"):
        await world.step()


async def test_lists_come_in_pages_that_expire(world: World) -> None:
    world.want(replicas=3)
    await world.until_ready(*NODES[:3])
    world.cluster.page, world.cluster.expired = 1, 2
    labels = "app.kubernetes.io/managed-by=skerry-control"
    pods = await world.api.all_of("v1/pods", labels)
    assert [each["metadata"]["name"] for each in pods] == [f"{SET}-{n}" for n in range(3)]
    world.cluster.expired = 9
    with pytest.raises(ApiError, match="expires before it is read"):
        await world.api.all_of("v1/pods", labels)
