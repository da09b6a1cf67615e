"""A real edge over a real engine that a test holds back."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import httpx
from tests.core.kv.sane_pools import check_pool
from tests.edge.byte_text import CONTEXT, ByteText
from tests.edge.scripted_region import MODEL
from tests.edge.serving import serving
from tests.edge.support import ACCOUNT, PATIENCE, eventually, specs

from skerry_core.batch import ForwardBatch
from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.runners.toy import ToyRunner
from skerry_edge.api.app import create_app
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.generation.edge import Edge
from skerry_edge.limits import Limits
from skerry_edge.text.model import TextModel
from skerry_regions.models.catalog import Catalog
from skerry_regions.node.node import Node
from skerry_regions.region.local import LocalRegion, LocalStream
from skerry_regions.wire.protocol import Embed, Submit

NUM_BLOCKS = 16


class StartedLater:
    """A `LocalRegion` of a node that is made on the edge's own loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._region: LocalRegion | None = None

    def _local(self) -> LocalRegion:
        if self._region is None:
            node = Node(id="node", region="here", loop=asyncio.get_running_loop())
            node.serve(MODEL, self._engine)
            self._region = LocalRegion(node)
        return self._region

    async def generate(self, submit: Submit) -> LocalStream:
        return await self._local().generate(submit)

    async def embed(self, embed: Embed) -> bytes:
        return await self._local().embed(embed)

    def models(self) -> frozenset[str]:
        return frozenset({MODEL})

    async def close(self) -> None:
        await self._local().close()


class Gate:
    """Lets the engine make so many steps, then waits to be opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.opened.set()
        self.left = 0

    def close_after(self, steps: int) -> None:
        self.left = steps
        self.opened.clear()

    def __call__(self, batch: ForwardBatch) -> None:
        self.left -= 1
        if self.left < 0:
            assert self.opened.wait(2 * PATIENCE)


class Platform:
    """The edge, how to call it, and the engine behind it."""

    def __init__(self, edge: Edge, engine: Engine, gate: Gate, client: httpx.Client) -> None:
        self.edge, self.engine, self.gate, self.client = edge, engine, gate, client

    def send(self, path: str, body: Any, method: str = "POST", **more: Any) -> httpx.Response:
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        return self.client.request(method, path, **content, **more)

    def assert_whole(self) -> None:
        """Nothing runs, and every block is idle."""
        eventually(lambda: self.edge.metrics.running.value == 0)
        eventually(lambda: not self.engine.has_work)
        assert self.engine.statistics().blocks_used == 0
        check_pool(self.engine.pool)


def platform(folder: Path) -> Generator[Platform]:
    tokens = TokenStore(folder / "tokens.json")
    token, _ = tokens.create(account_id=ACCOUNT, now=0)
    gate = Gate()
    runner = ToyRunner(num_blocks=NUM_BLOCKS, vocab_size=258, max_context=CONTEXT, before_step=gate)
    engine = Engine(runner, EngineConfig(), model_key=b"bytes")
    limits = Limits(drain_seconds=1)
    edge = Edge(
        catalog=Catalog(specs()),
        texts={MODEL: cast(TextModel, ByteText())},
        region=StartedLater(engine),
        tokens=tokens,
        secret=b"s" * 32,
        limits=limits,
    )
    headers = {"authorization": f"Bearer {token}"}
    # One that leaves resets its connection: after a mere end it may still be reading.
    transport = httpx.HTTPTransport(
        socket_options=[(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))]
    )
    with (
        serving(create_app(edge), limits) as port,
        httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=PATIENCE,
            transport=transport,
        ) as client,
    ):  # fmt: skip
        yield Platform(edge, engine, gate, client)
    assert engine.pool.num_used == 0
