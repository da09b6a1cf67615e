"""What `skerry top` makes of the reports of processes, and how it looks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from aiohttp import web
from msgspec.structs import replace
from rich.console import Console

from skerry_cli.home.control import (
    EdgeStatus,
    EngineFigures,
    NodeStatus,
    Status,
    answer_status,
    ask_status,
)
from skerry_cli.observe.overview import Overview, look, overview
from skerry_cli.observe.top import render

pytestmark = pytest.mark.anyio

MODEL = "@cf/test/m"
TOKEN = "skerry_0123_456"


def node(id: str, region: str, *, state: str = "ready", streams: int = 0) -> NodeStatus:
    return NodeStatus(id, 1, "hybrid", region, MODEL, state, streams, f"unix:/nowhere/{id}")


STATUS = Status(
    url="http://127.0.0.1:1",
    edges=[
        EdgeStatus("edge-fra", 1, "http://127.0.0.1:1", "fra"),
        EdgeStatus("edge-iad", 2, "http://127.0.0.1:2", "iad"),
    ],
    nodes=[
        node("fra-a-0", "fra", streams=3),
        node("fra-a-1", "fra", state="starting"),
        node("iad-a-0", "iad"),
    ],
    notes=["iad-a-0: restarted 1 times"],
)
RTTS = {"fra": 0.0001, "iad": 0.0805}


def engine(made: int, busy: float = 0.0) -> EngineFigures:
    return EngineFigures(
        running=2, waiting=1, blocks=100, blocks_used=25, blocks_cached=10,
        computed_tokens=300 + made, output_tokens=made, cache_hit_tokens=100, busy_seconds=busy,
    )  # fmt: skip


def at(seconds: float, made: int, before: Overview | None = None) -> Overview:
    engines = [engine(made, busy=seconds / 2), None, engine(0)]
    return overview(STATUS, engines, [RTTS, {}], seconds, before)


def test_pools_are_their_nodes_added_up() -> None:
    fra, iad = at(1.0, 50).pools
    assert (fra.region, fra.nodes, fra.ready, fra.streams, fra.waiting) == ("fra", 2, 1, 3, 1)
    assert (fra.kv_used, fra.cache_hits) == (0.25, 0.25)
    assert fra.tokens_per_second is None
    assert (iad.region, iad.nodes) == ("iad", 1)


def test_rates_are_of_the_time_between_two_looks() -> None:
    seen = at(3.0, 90, before=at(1.0, 50))
    assert [each.tokens_per_second for each in seen.nodes] == [20.0, None, 0.0]
    assert seen.nodes[0].busy == 0.5
    assert seen.pools[0].tokens_per_second == 20.0


def test_two_models_of_one_node_have_rates_of_their_own() -> None:
    own = node("node-1", "local")
    status = Status(url="u", edges=[], nodes=[own, replace(own, model="@cf/test/n")])
    before = overview(status, [engine(50), engine(10)], [], 1.0, None)
    after = overview(status, [engine(90), engine(12)], [], 3.0, before)
    assert [each.tokens_per_second for each in after.nodes] == [20.0, 1.0]


def test_an_engine_that_began_anew_has_no_rate() -> None:
    assert at(3.0, 10, before=at(1.0, 50)).nodes[0].tokens_per_second is None


def test_all_of_it_is_shown() -> None:
    console = Console(width=140)
    with console.capture() as captured:
        console.print(render(at(3.0, 90, before=at(1.0, 50))))
    text = captured.get()
    for expected in ("1/2", "fra-a-0", "starting", "25 %", "80.5 ms", "restarted 1 times", "20"):
        assert expected in text


async def test_everybody_is_asked_and_silence_is_no_figure(tmp_path: Path) -> None:
    socket = str(tmp_path / "n.control")
    told = {"running": 1, "blocks": 8, "blocks_used": 2, "restored_blocks": 9}

    async def status_of_node(request: web.Request) -> web.Response:
        return web.json_response({"engines": {MODEL: told}})

    async def report_of_edge(request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return web.json_response({"success": False}, status=401)
        return web.json_response({"region": "fra", "queue_seconds": 0.0, "rtt_seconds": RTTS})

    app, edge = web.Application(), web.Application()
    app.router.add_get("/status", status_of_node)
    edge.router.add_get("/regions", report_of_edge)
    edge.router.add_get("/status", status_of_node)  # it stands for a node at a port, too
    runners = [web.AppRunner(app), web.AppRunner(edge)]
    for runner in runners:
        await runner.setup()
    await web.UnixSite(runners[0], socket).start()
    site = web.TCPSite(runners[1], "127.0.0.1", 0)
    await site.start()
    port = runners[1].addresses[0][1]
    status = Status(
        url="u",
        edges=[EdgeStatus("edge-fra", 1, f"http://127.0.0.1:{port}", "fra"), STATUS.edges[1]],
        nodes=[
            NodeStatus("fra-a-0", 1, "hybrid", "fra", MODEL, "ready", 0, f"unix:{socket}"),
            STATUS.nodes[2],
            NodeStatus("fra-a-9", 1, "hybrid", "fra", MODEL, "ready", 0, f"tcp:127.0.0.1:{port}"),
        ],
    )

    async def now() -> Status:
        return status

    try:
        async with answer_status(str(tmp_path / "control"), now):
            seen = await look(partial(ask_status, str(tmp_path / "control")), TOKEN)
            refused = await look(partial(ask_status, str(tmp_path / "control")), "another")
    finally:
        for runner in runners:
            await runner.cleanup()
    asked, silent, at_port = seen.nodes
    assert asked.engine == at_port.engine == EngineFigures(running=1, blocks=8, blocks_used=2)
    assert silent.engine is None
    assert [each.rtt for each in seen.edges] == [RTTS, {}]
    assert [each.rtt for each in refused.edges] == [{}, {}]
