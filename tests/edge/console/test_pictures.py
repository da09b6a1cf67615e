"""The pictures of docs/console.md: each page by night and by day, as a busy platform would have it.

SKERRY_SHOTS=docs/pictures python -m pytest -m slow tests/edge/console/test_pictures.py
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from tests.edge.api.batch.test_openai_batches import chat, create, ended, lines
from tests.edge.console.browsing import BROWSER, Pages, close, shot
from tests.edge.console.pages.test_regions_page import SEA
from tests.edge.scripted_region import MODEL, ScriptedStream, answer
from tests.edge.support import ACCOUNT, CHAT, Deployment, deployed

from skerry_edge.gate.admission import Admission
from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits
from skerry_edge.money.caps import Caps
from skerry_edge.money.sqlite_spending import SqliteSpending
from skerry_regions.phases import Phase, Timeline
from skerry_regions.region.attempt_record import AttemptRecord
from skerry_regions.routing.placement import Placement
from skerry_regions.wire.protocol import Done, Submit, Tokens

pytestmark = BROWSER

SIZE = (1200, 750)
ANSWER = (
    "Sunlight is scattered by the molecules of the air, the short waves far more than the long "
    "ones: **blue** about four times as much as red.\n\nSo blue comes from all over the sky, and "
    "what is left of the sun's own light looks a little *yellower*."
)
DAY_SECONDS = 86_400


class CalmStream(ScriptedStream):
    """Takes its time, as an engine does: 50 ms until the first token, some 12 between others."""

    steps = 0

    async def __anext__(self) -> Tokens | Done:
        self.steps += 1
        jitter = self.steps * 7919 % 11 / 1e3
        await asyncio.sleep(0.05 if self.steps == 1 else 0.008 + jitter)
        return await super().__anext__()


def placed(prefill: str, decode: str, /, **terms: float) -> Placement:
    return Placement(
        prefill=prefill, decode=decode, fetch=None, cached_tokens=0 if "iad" in decode else 64,
        terms=terms, seconds=sum(terms.values()),
    )  # fmt: skip


def attempt() -> AttemptRecord:
    """A request that begins now, split over two nodes, as long as a `CalmStream` takes."""
    now, seconds = time.monotonic(), 0.36
    prefill = Timeline(
        seconds=0.048,
        phases=(
            Phase(name="queue", start=0.0, seconds=0.009),
            Phase(name="prefill", start=0.009, seconds=0.031, tokens=38, cached_tokens=16),
            Phase(name="send", start=0.03, seconds=0.018, blocks=2, bytes=589_824),
        ),
    )
    decode = Timeline(
        seconds=seconds,
        phases=(
            Phase(name="receive", start=0.03, seconds=0.018, blocks=2, bytes=589_824),
            Phase(name="decode", start=0.05, seconds=seconds - 0.05, tokens=243, steps=25),
        ),
    )
    return AttemptRecord(
        nodes=("fra-0", "fra-2"),
        candidates=[
            placed("fra-0", "fra-2", queue=0.009, prefill=0.033, transfer=0.004, step_wait=0.012),
            placed("fra-1", "fra-1", queue=0.021, prefill=0.033, step_wait=0.019),
            placed("iad-0", "iad-1", rtt=0.089, queue=0.002, prefill=0.052, step_wait=0.012),
        ],
        asked=now - 0.0003,
        began=now,
        first_tokens=now + 0.051,
        ended=now + seconds,
        num_tokens=243,
        outcome="stop",
        timelines={"fra-0": prefill, "fra-2": decode},
    )


def play(edge: Deployment) -> None:
    """Have the region answer as a platform would."""

    async def generate(submit: Submit) -> ScriptedStream:
        stream = CalmStream(submit, answer(ANSWER, per_step=10))
        stream.told = [attempt()]
        edge.region.streams.append(stream)
        return stream

    edge.region.generate = generate  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def browsed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    SEA.restore()
    folder = tmp_path_factory.mktemp("pictures")
    spending = SqliteSpending(folder / "spending.db")
    with deployed(
        folder, Limits(drain_seconds=1), console="loopback", fleet=lambda: SEA.fleet,
        platform=ACCOUNT, keeps_batches=True, admission=Admission(spending=spending),
        stores=Stores.in_folder(folder / "stores", edge="edge-1"),
    ) as edge:  # fmt: skip
        edge.region.served = frozenset({MODEL, CHAT})
        fill(edge)
        yield edge
    close(spending)


def fill(edge: Deployment) -> None:
    """Have something on each page."""
    play(edge)
    for name, cap in (("search", 0.002), ("notebook", 0.02)):
        token, _ = edge.edge.tokens.create(
            account_id=ACCOUNT, name=name, caps=Caps(per_day=cap), now=0
        )
        body = {"prompt": "hi", "max_tokens": 300}
        for _ in range(4):
            edge.client.post(edge.run_path, json=body, headers={"authorization": f"Bearer {token}"})
    base_url = f"http://127.0.0.1:{edge.port}/client/v4/accounts/{ACCOUNT}/ai/v1"
    with openai.OpenAI(api_key=edge.token, base_url=base_url, max_retries=0) as client:
        ended(client, create(client, lines(chat("a"), chat("b"), chat("c", temperature=99))).id)
        create(client, lines(chat("a")) + b"no json\n")
    journal = edge.edge.stores.journal
    assert journal is not None
    journal.written().result()
    with contextlib.closing(sqlite3.connect(journal.path)) as database, database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(usage)")]
        kept = ", ".join(each for each in columns if each not in ("number", "id", "admitted"))
        [last] = database.execute("SELECT MAX(number) FROM usage").fetchone()
        for day in range(1, 28):
            for copy in range(1 + day * 7 % 5):
                database.execute(
                    f"INSERT INTO usage (id, admitted, {kept}) SELECT id || '-{day}-{copy}', "
                    f"admitted - {day * DAY_SECONDS}, {kept} FROM usage WHERE number <= {last}"
                )


def playground(page: Any) -> None:
    page.click("#run")
    page.wait_for_selector("text=Done:")
    page.click("#replay")
    page.wait_for_selector("text=Identical, character by character.")


def one_request(page: Any) -> None:
    page.click(".requests tbody tr >> nth=0")
    page.wait_for_selector(".why-row")


def one_call(page: Any) -> None:
    page.check("[name=stream]")
    page.click(".try .primary")
    page.wait_for_selector("text=whole after")
    page.locator(".try pre").scroll_into_view_if_needed()


PICTURES: dict[str, tuple[str, str, Callable[[Any], None]]] = {
    "playground": ("playground", "#run", playground),
    "requests": ("requests", ".requests tbody tr", lambda page: None),
    "request": ("requests", ".requests tbody tr", one_request),
    "regions": ("regions", ".light", lambda page: None),
    "models": ("models", ".models tbody tr", lambda page: None),
    "usage": ("usage", ".sums", lambda page: None),
    "batches": ("batches", ".batches tbody tr", lambda page: None),
    "docs": ("docs", ".doc dl", lambda page: None),
    "call": ("docs/calls/createChatCompletion", ".try .primary:enabled", one_call),
}


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_taken(at: Deployment, pages: Pages, name: str, theme: str) -> None:
    if at.edge.traces.num_bytes < 20_000:
        for _ in range(12):
            at.run(prompt="hi", max_tokens=300)
    path, ready, act = PICTURES[name]
    page = pages.open(pages.link(path=f"/console/{path}"), size=SIZE, theme=theme)
    page.wait_for_selector(ready)
    act(page)
    shot(page, f"{name}-{theme}")
