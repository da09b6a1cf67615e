"""What `skerry top` makes of what processes tell, and how it looks."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from rich.console import Console

from skerry_cli.home.control import EdgeStatus, NodeStatus, Status, answer_status
from skerry_cli.observe.overview import Engine, Overview, look, overview
from skerry_cli.observe.top import render

pytestmark = pytest.mark.anyio

MODEL = "@cf/test/m"
METRICS = """\
# TYPE skerry_node_rtt_seconds gauge
skerry_node_rtt_seconds{node="fra-a-0"} 0.0002
skerry_node_rtt_seconds{node="fra-a-1"} 0.0001
skerry_node_rtt_seconds{node="edge-iad"} 0.0805
skerry_node_rtt_seconds{node="gone"} 1.0
"""


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
RTTS = {"fra-a-0": 0.0002, "fra-a-1": 0.0001, "edge-iad": 0.0805, "gone": 1.0}


def engine(made: int, busy: float = 0.0) -> Engine:
    return Engine(
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


def test_an_engine_that_began_anew_has_no_rate() -> None:
    assert at(3.0, 10, before=at(1.0, 50)).nodes[0].tokens_per_second is None


def test_distances_are_the_shortest_to_each_region() -> None:
    fra, iad = at(1.0, 0).edges
    assert fra.rtt == {"fra": 0.0001, "iad": 0.0805}
    assert iad.rtt == {}


def test_all_of_it_is_shown() -> None:
    console = Console(width=140)
    with console.capture() as captured:
        console.print(render(at(3.0, 90, before=at(1.0, 50))))
    text = captured.get()
    for expected in ("1/2", "fra-a-0", "starting", "25 %", "80.5 ms", "restarted 1 times", "20"):
        assert expected in text


async def test_everybody_is_asked_and_silence_is_no_figure(tmp_path: Path) -> None:
    socket = str(tmp_path / "n.control")
    told = {"running": 1, "blocks": 8, "blocks_used": 2, "steps": 9}

    async def status_of_node(request: web.Request) -> web.Response:
        return web.json_response({"engines": {MODEL: told}})

    async def metrics_of_edge(request: web.Request) -> web.Response:
        return web.Response(text=METRICS)

    app, edge = web.Application(), web.Application()
    app.router.add_get("/status", status_of_node)
    edge.router.add_get("/metrics", metrics_of_edge)
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
        ],
    )
    try:
        async with answer_status(str(tmp_path / "control"), lambda: status):
            seen = await look(str(tmp_path / "control"))
    finally:
        for runner in runners:
            await runner.cleanup()
    asked, silent = seen.nodes
    assert asked.engine == Engine(running=1, blocks=8, blocks_used=2)
    assert silent.engine is None
    assert seen.edges[0].rtt == {"fra": 0.0002, "iad": 0.0805}
    assert seen.edges[1].rtt == {}
