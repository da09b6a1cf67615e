"""What a console costs while much happens: the page's main thread, its memory, and the edge's loop.

Requests are one that was recorded, ended again and again; nodes are recorded looks at a thousand.
Time of processors is measured, which other work of the machine does not move; what a person waits
for is the least of several tries. With `SKERRY_SHOTS=FOLDER` the figures are kept in
`FOLDER/figures.txt`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import httpx
import pytest
from tests.edge.console.browsing import BROWSER, Pages, ask, until
from tests.edge.console.replayed_load import (
    LOOKS,
    PER_SECOND,
    SECONDS,
    PacedStream,
    Replay,
    Thread,
    report,
    spent,
)
from tests.edge.scripted_region import answer
from tests.edge.support import ACCOUNT, PATIENCE, Deployment, deployed

from skerry_edge.limits import Limits
from skerry_regions.wire.protocol import Done, Submit, Tokens

pytestmark = BROWSER

COUNT_ROWS = """window.rowsSeen = 0; const parse = JSON.parse;
JSON.parse = text => { const told = parse(text); window.rowsSeen += told?.requests?.length ?? 0;
    return told; };"""
WATCH = """window.seen = [];
new MutationObserver(() => window.seen.push(
    [document.querySelector('.answer').innerText.replace(/^Hi\\s*/, '').length,
     performance.timeOrigin + performance.now()]
)).observe(document.querySelector('.lanes'), {childList: true, subtree: true, characterData: true})
"""

VIEWS = {"requests": ".requests tbody tr", "regions": "tr[data-name='fra-0001']"}


@pytest.fixture(scope="module")
def browsed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("load")
    with deployed(
        folder, Limits(), console="loopback", fleet=lambda: next(LOOKS), platform=ACCOUNT
    ) as edge:
        yield edge


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
