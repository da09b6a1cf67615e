"""What a console costs while much happens: the page's main thread, its memory, and the edge's loop.

Requests are one that was recorded, ended again and again; nodes are recorded looks at a thousand.
Time of processors is measured, which other work of the machine does not move; what a person waits
for is the least of several tries. With `SKERRY_SHOTS=FOLDER` the figures are kept in
`FOLDER/figures.txt`.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import statistics
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from tests.edge.console.browsing import BROWSER, SHOTS, Pages, ask, until
from tests.edge.console.pages.test_regions_page import SEA
from tests.edge.support import (
    ACCOUNT,
    PATIENCE,
    Deployment,
    ScriptedStream,
    answer,
    deployed,
    eventually,
)
from tests.edge.telemetry.test_tracing import split_attempt

from skerry_edge.limits import Limits
from skerry_edge.telemetry.trace_store import EndedTrace
from skerry_edge.telemetry.tracing import Trace
from skerry_regions.region.region_figures import SeenFleet, SeenNode
from skerry_regions.wire.protocol import Done, Submit, Tokens

pytestmark = BROWSER

NODES, PER_SECOND = 1000, 200
SECONDS = 8.0  # of each measurement
COUNT_ROWS = """window.rowsSeen = 0; const parse = JSON.parse;
JSON.parse = text => { const told = parse(text); window.rowsSeen += told?.requests?.length ?? 0;
    return told; };"""
WATCH = """window.seen = [];
new MutationObserver(() => window.seen.push(
    [document.querySelector('.answer').innerText.replace(/^Hi\\s*/, '').length,
     performance.timeOrigin + performance.now()]
)).observe(document.querySelector('.lanes'), {childList: true, subtree: true, characterData: true})
"""


def looks() -> Iterator[SeenFleet]:
    """Recorded looks at a thousand nodes, all of which are busy with something else each time."""
    recorded = [
        replace(SEA.fleet, nodes=[node(number, look) for number in range(NODES)])
        for look in range(16)
    ]
    return itertools.cycle(recorded)


def node(number: int, look: int) -> SeenNode:
    busy = (number * 37 + look * 11) % 100
    seen = SEA.fleet.nodes[0]
    assert seen.work is not None
    return replace(
        seen,
        id=f"fra-{number:04}",
        streams=busy,
        queue_seconds=busy / 1e3,
        work=replace(seen.work, busy_seconds=look * busy / 200, blocks_used=busy % 64),
    )


LOOKS = looks()


@pytest.fixture(scope="module")
def browsed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("load")
    with deployed(
        folder, Limits(), console="loopback", fleet=lambda: next(LOOKS), platform=ACCOUNT
    ) as edge:
        yield edge


class Replay:
    """Ends a recorded request again and again, on the edge's own loop."""

    def __init__(self, at: Deployment) -> None:
        self._at = at
        self._loops: list[asyncio.AbstractEventLoop] = []
        self._recorded: list[Trace] = []
        self._numbers = itertools.count()
        self._at.region.attempts = [split_attempt()]
        self._at.region.script = self._caught
        at.edge.traces.watch(self._hear)
        at.run(prompt="hi")
        eventually(lambda: self._recorded)
        at.edge.traces.unwatch(self._hear)

    def _caught(self, submit: Submit) -> Any:
        self._loops.append(asyncio.get_running_loop())
        return answer("Hello")

    def _hear(self, ended: EndedTrace) -> None:
        self._recorded.append(self._copied(ended.trace))

    def _copied(self, trace: Trace) -> Trace:
        copied = copy.copy(trace)
        copied._spans = [*trace._spans]
        return copied

    @contextmanager
    def going_on(self, number: int, pause: float) -> Generator[Callable[[], float]]:
        """End so many requests each `pause` seconds; gives the loop's processor time in seconds."""
        [loop] = set(self._loops)
        spent: list[float] = []

        async def run() -> None:
            traces = self._at.edge.traces
            while True:
                for _ in range(number):
                    trace = self._copied(self._recorded[0])
                    trace.request_id = f"replayed-{next(self._numbers)}"
                    traces.begin(trace, ACCOUNT)
                    traces.end(trace, 200, "/run")
                await asyncio.sleep(pause)

        async def clocked() -> None:
            spent.append(time.thread_time())

        def used() -> float:
            asyncio.run_coroutine_threadsafe(clocked(), loop).result(PATIENCE)
            return spent[-1]

        running = asyncio.run_coroutine_threadsafe(run(), loop)
        try:
            yield used
        finally:
            running.cancel()


class Thread:
    """The main thread of a page, by its debugger."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self._debugger = page.context.new_cdp_session(page)
        self._debugger.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy_seconds(self) -> float:
        told = self._debugger.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in told if each["name"] == "TaskDuration"))

    def heap(self) -> float:
        """Bytes that are in use, after two collections."""
        for _ in range(2):
            self._debugger.send("HeapProfiler.collectGarbage")
        return float(self._debugger.send("Runtime.getHeapUsage")["usedSize"])

    def longest_task(self, chromium: Any, seconds: float) -> float:
        """The processor time of the longest task of so many seconds, in seconds."""
        chromium.start_tracing(
            page=self._page, categories=["toplevel", "disabled-by-default-devtools.timeline"]
        )
        self._page.wait_for_timeout(seconds * 1000)
        told = json.loads(chromium.stop_tracing())["traceEvents"]
        mains = {
            (each["pid"], each["tid"])
            for each in told
            if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
        }
        tasks = [
            each.get("tdur", 0)
            for each in told
            if "RunTask" in each["name"] and (each["pid"], each["tid"]) in mains
        ]
        assert tasks, "no task was traced"
        return float(max(tasks)) / 1e6


def report(what: str, value: float, unit: str, wanted: float) -> None:
    line = f"{what}: {value:.3g} {unit} (at most {wanted:g})"
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        with (Path(SHOTS) / "figures.txt").open("a") as file:
            file.write(f"{line}\n")
    assert value <= wanted, line


VIEWS = {"requests": ".requests tbody tr", "regions": "tr[data-name='fra-0001']"}


@pytest.mark.parametrize("view", VIEWS)
def test_a_busy_page_keeps_its_thread_free(
    at: Deployment, pages: Pages, chromium: Any, view: str
) -> None:
    with Replay(at).going_on(PER_SECOND // 20, 0.05):
        page = pages.open(pages.link(path=f"/console/{view}"))
        page.wait_for_selector(VIEWS[view])
        page.wait_for_timeout(1000)
        thread = Thread(page)
        before, began = thread.busy_seconds(), time.monotonic()
        page.wait_for_timeout(SECONDS * 1000)
        busy = (thread.busy_seconds() - before) / (time.monotonic() - began)
        report(f"{view}: main thread", 100 * busy, "%", 40.0)
        report(f"{view}: longest task", 1e3 * thread.longest_task(chromium, 4.0), "ms", 50.0)


@pytest.mark.parametrize("view", VIEWS)
def test_an_edge_spends_little_on_who_looks(at: Deployment, view: str) -> None:
    replay, shares = Replay(at), []
    base = f"http://127.0.0.1:{at.port}"
    with httpx.Client(base_url=base, headers={"x-skerry-console": "1"}, trust_env=False) as client:
        assert client.post("/console/login", json={"token": at.token}).status_code == 200
        with replay.going_on(PER_SECOND // 20, 0.05) as used:
            for _ in range(3):  # interleaved
                alone = spent(used)
                with client.stream("GET", f"/console/live?view={view}", timeout=PATIENCE) as reply:
                    frames = reply.iter_raw()
                    next(frames)
                    shares.append(spent(used, frames) - alone)
    report(f"{view}: of an edge's core", 100 * statistics.median(shares), "%", 2.0)


def spent(used: Callable[[], float], frames: Iterator[bytes] | None = None) -> float:
    """The share of a core that the loop takes, while somebody reads frames or nobody does."""
    before, began = used(), time.monotonic()
    while time.monotonic() < began + SECONDS / 2:
        if frames is None or next(frames, None) is None:
            time.sleep(0.05)
    return (used() - before) / (time.monotonic() - began)


def test_a_hundred_thousand_events_leave_nothing_behind(
    at: Deployment, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry_edge.console.live.BEAT_SECONDS", 0.02)
    replay = Replay(at)
    page = pages.open(f"{pages.base}/console/static/none")
    page.context.add_init_script(COUNT_ROWS)
    page.goto(pages.link(path="/console/requests"))
    thread, heaps = Thread(page), []
    for number in (10_000, 110_000):
        with replay.going_on(100, 0.02):
            until(page, f"window.rowsSeen > {number}")
        page.wait_for_timeout(2000)  # of what is on its way nothing is counted
        heaps.append(thread.heap())
    before, after = heaps
    report("heap after 100,000 events, of before", after / before, "", 1.1)
    assert page.locator("tr").count() < 300


class PacedStream(ScriptedStream):
    """Notes when it gave a token; gives one each 30 ms."""

    sent: list[float]

    async def __anext__(self) -> Tokens | Done:
        await asyncio.sleep(0.03)
        step = await super().__anext__()
        self.sent.append(time.time())
        return step


def test_a_character_is_there_soon_after_its_event(
    at: Deployment, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[PacedStream] = []

    async def generate(submit: Submit) -> AsyncIterator[Tokens | Done]:
        stream = PacedStream(submit, answer("a" * 100))
        stream.sent = []
        made.append(stream)
        at.region.streams.append(stream)
        return stream

    monkeypatch.setattr(at.region, "generate", generate)
    page = pages.open()
    page.wait_for_selector("#run")
    page.evaluate(WATCH)
    ask(page)
    page.wait_for_selector("text=Done:")
    seen: Sequence[tuple[int, float]] = page.evaluate("window.seen")
    lags = [
        next(at for length, at in seen if length > place) - 1e3 * sent
        for place, sent in enumerate(made[-1].sent[:100])
    ]
    report("a character after its event, median of 100", statistics.median(lags), "ms", 20.0)


def test_the_first_paint_is_soon(pages: Pages) -> None:
    painted = []
    for _ in range(5):
        page = pages.open()  # with nothing in its cache
        page.wait_for_selector("#run")
        painted.append(
            page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        )
    report("first paint", min(painted), "ms", 300.0)
