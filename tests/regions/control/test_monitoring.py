"""What Prometheus finds at a control plane: targets, nodes' pages, and its own metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace
from tests.regions.control.support import MODEL, Api

from skerry_regions.control.desired.statuses import PoolStatus
from skerry_regions.control.reconcile.scraping import LOST_SECONDS, LostMembers
from skerry_regions.registry import Member

pytestmark = pytest.mark.anyio

PAGE = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3\n"
EDGE = Member(id="edge-0", kind="edge", region="fra", address="https://10.0.0.9:443")


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    api = Api(tmp_path)
    yield api
    await api.close()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Member]:
    """A node's record, and its page at a unix socket."""

    async def page(request: web.Request) -> web.Response:
        return web.Response(body=PAGE)

    app = web.Application()
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "n.control")).start()
    yield Member(id="fra-a-0", kind="node", region="fra", control=f"unix:{tmp_path}/n.control")
    await runner.cleanup()


async def test_all_that_there_is_to_be_scraped(api: Api, node: Member) -> None:
    remote = replace(node, id="far", control="tcp:10.0.0.7:9000")  # not of this machine
    api.seer.members = (EDGE, node, remote, replace(node, id="starting", control=""))
    groups = (await api.http.get("/prometheus_sd")).json()
    assert [(each["targets"], each["labels"]) for each in groups] == [
        (["127.0.0.1:8788"], {
            "job": "skerry-control", "instance": "control", "__scheme__": "http",
            "__metrics_path__": "/control/v1/metrics",
        }),
        (["10.0.0.9:443"], {
            "job": "skerry-edge", "instance": "edge-0", "__scheme__": "https",
            "__metrics_path__": "/metrics", "home_region": "fra",
        }),
        (["127.0.0.1:8788"], {
            "job": "skerry-node", "instance": "fra-a-0", "__scheme__": "http",
            "__metrics_path__": "/control/v1/nodes/fra-a-0/metrics", "home_region": "fra",
        }),
    ]  # fmt: skip


async def test_the_edge_of_plain_up_is_in_no_registry(api: Api) -> None:
    groups = (await api.http.get("/prometheus_sd")).json()
    assert [each["targets"] for each in groups] == [["127.0.0.1:8788"], ["127.0.0.1:8787"]]


async def test_a_nodes_page_is_passed_on(api: Api, node: Member, tmp_path: Path) -> None:
    gone = replace(node, id="gone", control=f"unix:{tmp_path}/nobody")
    remote = replace(node, id="far", control="tcp:10.0.0.7:9000")
    api.seer.members = (node, gone, remote)
    answer = await api.http.get("/nodes/fra-a-0/metrics")
    assert (answer.status_code, answer.content) == (200, PAGE)
    assert answer.headers["content-type"].startswith("text/plain")
    silent = await api.http.get("/nodes/gone/metrics")
    assert (silent.status_code, "does not answer" in silent.text) == (503, True)
    for id in ("far", "unknown"):
        assert (await api.http.get(f"/nodes/{id}/metrics")).status_code == 404


async def test_the_control_planes_own_metrics(api: Api, node: Member) -> None:
    await api.make("regions", name="fra", iata="FRA")
    await api.make("pools", name="a", region="fra", role="decode", model=MODEL, replicas=2)
    api.seer.statuses = {"fra-a": PoolStatus(phase="degraded", desired_replicas=2)}
    api.seer.failures.failing = {"fra-a": "it died"}
    api.seer.members = (replace(node, incarnation=1),)
    await api.http.get("/metrics")
    api.seer.members = (replace(node, incarnation=2),)
    lines = (await api.http.get("/metrics")).text.splitlines()
    for expected in (
        "skerry_control_revision 2",
        'skerry_control_phase{kind="pool",id="fra-a",phase="degraded"} 1',
        'skerry_control_phase{kind="pool",id="fra-a",phase="ready"} 0',
        'skerry_control_pool_nodes{pool="fra-a",state="desired"} 2',
        'skerry_control_pool_nodes{pool="fra-a",state="ready"} 0',
        'skerry_control_crash_loops{owner="fra-a"} 1',
        'skerry_process_restarts_total{id="fra-a-0"} 1',
        "skerry_control_behind_seconds 0.25",
    ):
        assert expected in lines, expected
    free, size = (
        float(line.split()[1]) for name in ("free_", "")
        for line in lines if line.startswith(f"skerry_disk_{name}bytes ")
    )  # fmt: skip
    assert 0 <= free <= size


async def test_a_model_that_sleeps_is_told_from_one_that_is_lost(api: Api) -> None:
    await api.make("regions", name="fra", iata="FRA")
    await api.make("pools", name="a", region="fra", role="decode", model=MODEL, max_replicas=2)
    await api.make("pools", name="b", region="fra", role="decode", model=MODEL, replicas=0)

    async def asleep() -> bool:
        lines = (await api.http.get("/metrics")).text.splitlines()
        return f'skerry_control_models_asleep{{model_name="{MODEL}"}} 1' in lines

    nothing, one = (PoolStatus(phase="ready", desired_replicas=count) for count in (0, 1))
    api.seer.statuses = {"fra-a": nothing, "fra-b": nothing}
    assert await asleep()
    api.seer.statuses = {"fra-a": nothing, "fra-b": one}
    assert not await asleep()
    await api.http.delete("/pools/fra-a")
    api.seer.statuses = {"fra-b": nothing}  # no request wakes it
    assert not await asleep()


def test_who_is_lost_stays_a_target_for_a_while() -> None:
    here, now = list[Member](), [0.0]
    desired: Any = SimpleNamespace(pools=lambda: {"fra-a": None}, edge_nodes=dict)
    members = LostMembers(lambda: tuple(here), lambda: desired, lambda: now[0])
    own = replace(EDGE, id="fra-a-0")
    leaving = replace(EDGE, id="leaving", state="draining")
    here += [EDGE, own, leaving]
    assert members() == (EDGE, own, leaving)
    here.clear()
    assert members() == (EDGE,)
    now[0] = LOST_SECONDS - 1.0
    assert members() == (EDGE,)
    here.append(replace(EDGE, pid=7))
    assert members() == (replace(EDGE, pid=7),)
    here.clear()
    now[0] += LOST_SECONDS
    assert members() == ()
