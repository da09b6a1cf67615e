"""Much that happens, and what a page's thread does meanwhile."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.edge.console.browsing import SHOTS
from tests.edge.console.pages.test_regions_page import SEA
from tests.edge.scripted_region import ScriptedStream, answer
from tests.edge.support import ACCOUNT, PATIENCE, Deployment, eventually
from tests.edge.telemetry.test_tracing import split_attempt

from skerry_edge.telemetry.trace_store import EndedTrace
from skerry_edge.telemetry.tracing import Trace
from skerry_regions.region.region_figures import SeenFleet, SeenNode
from skerry_regions.wire.protocol import Done, Submit, Tokens

NODES, PER_SECOND = 1000, 200
SECONDS = 8.0  # of each measurement


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


def spent(used: Callable[[], float], frames: Iterator[bytes] | None = None) -> float:
    """The share of a core that the loop takes, while somebody reads frames or nobody does."""
    before, began = used(), time.monotonic()
    while time.monotonic() < began + SECONDS / 2:
        if frames is None or next(frames, None) is None:
            time.sleep(0.05)
    return (used() - before) / (time.monotonic() - began)


class PacedStream(ScriptedStream):
    """Notes when it gave a token; gives one each 30 ms."""

    sent: list[float]

    async def __anext__(self) -> Tokens | Done:
        await asyncio.sleep(0.03)
        step = await super().__anext__()
        self.sent.append(time.time())
        return step
