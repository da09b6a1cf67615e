"""Which regions are busy, and how far from each other, as edges tell."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from skerry_dns.watch.health import FAILURES, SUCCESSES
from skerry_dns.watch.region_watch import (
    BUSY_SECONDS,
    MAX_METRICS,
    EdgeFigures,
    RegionWatch,
    Rtts,
    ask_edge,
    read_figures,
)
from skerry_dns.watch.rtt import MIN_SAMPLES
from skerry_edge.telemetry.metrics import EdgeMetrics

SILENT = EdgeFigures()


def test_figures_are_read_out_of_an_edge_s_metrics() -> None:
    metrics = EdgeMetrics()
    metrics.region_rtts = lambda: {"fra": 0.0002, "iad": 0.0805}
    metrics.region_queue = lambda: {"fra": 3.5}
    assert read_figures(metrics.render().decode()) == EdgeFigures(
        queue={"fra": 3.5}, rtt={"fra": 0.0002, "iad": 0.0805}
    )
    with pytest.raises(ValueError, match="could not convert"):
        read_figures('skerry_region_rtt_seconds{region="fra"} 1.2.3\n')


def test_a_region_is_busy_when_all_its_edges_say_so_for_a_while() -> None:
    told: list[tuple[frozenset[str], Rtts]] = []
    says = {"a": 0.0, "b": 0.0}

    async def edge(name: str) -> EdgeFigures:
        return EdgeFigures(queue={"fra": says[name]}, rtt={"iad": 0.08, "unheard": 0.1})

    async def silent() -> EdgeFigures:
        return SILENT

    watch = RegionWatch(
        {"fra": [partial(edge, "a"), partial(edge, "b")], "iad": [silent]},
        lambda busy, rtts: told.append((busy, rtts)),
    )

    async def busy_after(rounds: int) -> set[str]:
        for _ in range(rounds):
            await watch.round()
        return set(told[-1][0])

    async def main() -> None:
        says["a"] = 2 * BUSY_SECONDS
        assert await busy_after(FAILURES) == set()  # the other edge has no queue
        says["b"] = BUSY_SECONDS
        assert await busy_after(FAILURES - 1) == set()
        assert await busy_after(1) == {"fra"}
        says["b"] = 0.0
        assert await busy_after(SUCCESSES - 1) == {"fra"}
        assert await busy_after(1) == set()
        await busy_after(MIN_SAMPLES)
        assert told[-1][1] == {"fra": {"iad": pytest.approx(0.08)}, "iad": {}}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "queue"),
    [
        (b'skerry_region_queue_seconds{region="fra"} 4\n', {"fra": 4.0}),
        (b'skerry_region_queue_seconds{region="fra"} 4\n' + bytes(MAX_METRICS), {}),
        (b"\xff", {}),
        (None, {}),
    ],
)
def test_an_edge_over_http(body: bytes | None, queue: dict[str, float]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if body is not None:
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            figures = await ask_edge(f"http://127.0.0.1:{port}")
        assert figures.queue == queue

    asyncio.run(main())
