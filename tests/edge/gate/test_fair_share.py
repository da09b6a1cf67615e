"""One tenant's flood costs another at most one step of the engine, through the whole edge.

Counted in steps, which a turnstile lets through one by one: no clock is asked.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import httpx
import pytest
from tests.edge.byte_text import ByteText
from tests.edge.scripted_region import MODEL
from tests.edge.support import specs

from skerry_core.batch import ForwardBatch
from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.runners.toy import ToyRunner
from skerry_edge.api.app import create_app
from skerry_edge.gate.admission import Admission
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.generation.edge import Edge
from skerry_edge.text.model import TextModel
from skerry_regions.models.catalog import Catalog
from skerry_regions.node.node import Node
from skerry_regions.region.local import LocalRegion

FLOOD, PLACES, NUM_RUNNING = 40, 32, 8
GREEDY, QUIET = "a" * 32, "b" * 32
SETTLE_TURNS = 200  # of the event loop, while the engine stands still


class Turnstile:
    """Holds the engine before each of its steps until that one is let through."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)
        self._is_waiting = threading.Event()
        self.num_steps = 0

    def __call__(self, batch: ForwardBatch) -> None:
        self._is_waiting.set()
        self._permits.acquire()
        self.num_steps += 1

    async def let_one_through(self) -> None:
        """Run one step, up to the next one."""
        self._is_waiting.clear()
        self._permits.release()
        await asyncio.to_thread(self._is_waiting.wait, 20)
        await settled()

    async def wait(self) -> None:
        """Until the engine is about to step."""
        await asyncio.to_thread(self._is_waiting.wait, 20)

    def open(self) -> None:
        self._permits.release(1_000_000)


async def settled() -> None:
    """Everything that follows from the last step has happened."""
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)


class Platform:
    """An edge and a toy engine in one process, and two tenants."""

    def __init__(self, folder: Path, num_blocks: int) -> None:
        self.turnstile = Turnstile()
        runner = ToyRunner(num_blocks=num_blocks, vocab_size=263, before_step=self.turnstile)
        config = EngineConfig(max_running=NUM_RUNNING)
        self.engine = Engine(runner, config, model_key=b"toy")
        node = Node(id="node", region="here", loop=asyncio.get_running_loop())
        node.serve(MODEL, self.engine)
        tokens = TokenStore(folder / "tokens.json")
        self._tokens = {each: tokens.create(account_id=each, now=0)[0] for each in (GREEDY, QUIET)}
        self.edge = Edge(
            catalog=Catalog(specs()),
            texts={MODEL: cast(TextModel, ByteText())},
            region=LocalRegion(node),
            tokens=tokens,
            secret=b"s" * 32,
            admission=Admission(max_requests=PLACES),
        )
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(create_app(self.edge)), base_url="http://edge", timeout=60
        )

    @property
    def num_admitted(self) -> int:
        return len(self.engine._capacity._tenants)

    def ask(self, tenant: str, prompt: str, max_tokens: int) -> asyncio.Task[httpx.Response]:
        return asyncio.create_task(
            self.client.post(
                f"/client/v4/accounts/{tenant}/ai/run/{MODEL}",
                headers={"authorization": f"Bearer {self._tokens[tenant]}"},
                json={"prompt": prompt, "raw": True, "max_tokens": max_tokens, "temperature": 0},
            )
        )


@asynccontextmanager
async def platform(folder: Path, num_blocks: int) -> AsyncGenerator[Platform]:
    platform = Platform(folder, num_blocks)
    try:
        yield platform
    finally:
        platform.turnstile.open()
        await platform.client.aclose()
        await platform.edge.region.close()


async def steps_to_the_first_token(
    folder: Path, *, flood: int, prompt: str, num_blocks: int
) -> int:
    """From the quiet tenant's arrival at the engine, in the middle of a step if there is one."""
    async with platform(folder, num_blocks) as it:
        flooding = [it.ask(GREEDY, f"{i:03d} {prompt}", 60) for i in range(flood)]
        await settled()
        if flood:
            refused = [each.result() for each in flooding if each.done()]
            assert [each.json()["errors"][0]["code"] for each in refused] == [3040] * (
                flood - PLACES
            )
            assert it.num_admitted == PLACES
            await it.turnstile.wait()
            for _ in range(12):
                await it.turnstile.let_one_through()
        before = it.turnstile.num_steps
        asking = it.ask(QUIET, "hi", 1)
        await settled()
        if not flood:
            it.turnstile.open()
            assert (await asking).status_code == 200
        while not asking.done():
            await it.turnstile.let_one_through()
        assert (await asking).json()["result"]["usage"]["completion_tokens"] == 1
        num_steps = it.turnstile.num_steps - before
        it.turnstile.open()
        for task in flooding:
            task.cancel()
        await asyncio.gather(*flooding, return_exceptions=True)
        return num_steps


@pytest.mark.parametrize(
    ("prompt", "num_blocks"),
    [
        pytest.param("short", 256, id="while-others-decode"),
        pytest.param("long " * 80, 256, id="while-others-prefill"),
        pytest.param("long " * 80, 40, id="while-memory-is-full"),
    ],
)
def test_a_flood_adds_at_most_one_step(tmp_path: Path, prompt: str, num_blocks: int) -> None:
    alone = asyncio.run(
        steps_to_the_first_token(tmp_path, flood=0, prompt=prompt, num_blocks=num_blocks)
    )
    beside = asyncio.run(
        steps_to_the_first_token(tmp_path, flood=FLOOD, prompt=prompt, num_blocks=num_blocks)
    )
    assert alone == 1
    assert beside <= alone + 1
