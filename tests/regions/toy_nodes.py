"""Nodes of the toy model on unix sockets, for tests of what lies between edge and engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event as ThreadEvent

import msgspec
import numpy as np

from skerry_core.batch import ForwardBatch
from skerry_core.config import EngineConfig, KVDtype
from skerry_core.engine.engine import Engine
from skerry_core.runners.toy import ToyRunner, next_token
from skerry_regions.address import Address
from skerry_regions.node.grammar.grammars import Grammars
from skerry_regions.node.node import Node
from skerry_regions.region.placer import EarlierAttempts, Route
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.region.remote_stream import RemoteStream
from skerry_regions.wire.link import NodeLink, Patience
from skerry_regions.wire.link_auth import NO_CREDENTIALS, LinkCredentials
from skerry_regions.wire.listener import NodeServer
from skerry_regions.wire.protocol import (
    VERSIONS,
    Done,
    Hello,
    ModelBuild,
    Sampling,
    Submit,
    Tokens,
)
from skerry_regions.zones import GLOBAL

MODEL = "@cf/skerry/toy"
VOCABULARY = 257
PROMPT = [(7 * i + 3) % VOCABULARY for i in range(150)]
PATIENCE = Patience(ping=0.02, silence=0.3, reconnect=0.01)  # an engine may stand still for 10 s
HASTY = Patience(ping=0.02, silence=0.3, stuck=1.0, reconnect=0.01)
CALM = Patience(ping=0.02)


def hello(id: str) -> Hello:
    build = ModelBuild(id=MODEL, tokenizer="t", template="c")
    return Hello(versions=[*VERSIONS], id=id, models=[build])


class Gate:
    """Counts the tokens of a node's steps, and holds its engine where a test says.

    A test that strikes in the middle of a stream says so before it submits: a toy engine answers
    faster than a busy machine reads.
    """

    def __init__(self) -> None:
        self.steps_left: int | None = None
        self.open = ThreadEvent()
        self.tokens: list[int] = []

    def hold_after(self, steps: int) -> None:
        """Let so many steps run from now on; the next one waits until `open` is set."""
        self.open.clear()
        self.steps_left = steps

    def __call__(self, batch: ForwardBatch) -> None:
        if self.steps_left is not None:
            if self.steps_left == 0:
                self.open.wait(60)
            else:
                self.steps_left -= 1
        self.tokens.append(batch.num_tokens)


class RunningNode:
    def __init__(
        self,
        name: str,
        path: Path,
        config: EngineConfig | None = None,
        *,
        num_blocks: int = 64,
        incarnation: int = 0,
        grammars: Grammars | None = None,
        zone: str = GLOBAL,
        dtype: KVDtype = "float16",
        make_runner: Callable[..., ToyRunner] = ToyRunner,
        credentials: LinkCredentials = NO_CREDENTIALS,
    ) -> None:
        """Nodes with KV of another `dtype` are of another numeric build; their tokens are equal.
        With `credentials` it listens over TCP."""
        self.gate = Gate()
        self.runner = make_runner(
            num_blocks=num_blocks, vocab_size=VOCABULARY, dtype=dtype, before_step=self.gate
        )
        self.engine = Engine(self.runner, config or EngineConfig(), model_key=b"toy")
        self.node = Node(
            id=name,
            region="here",
            loop=asyncio.get_running_loop(),
            incarnation=incarnation,
            zone=zone,
        )
        self.node.serve(MODEL, self.engine, grammars, credentials)
        self.credentials = credentials
        self.server = NodeServer(self.node, hello(name))
        self.address = self.kv_address = Address(host="127.0.0.1")
        if credentials is NO_CREDENTIALS:
            self.address = Address(path=str(path / f"{name}.sock"))
            self.kv_address = Address(path=str(path / f"{name}.kv.sock"))

    @property
    def num_computed(self) -> int:
        """Tokens that its engine ran."""
        return sum(self.gate.tokens)

    async def listen(self) -> None:
        self.address = await self.server.listen(self.address, self.credentials)
        self.kv_address = await self.node.connector(MODEL).listen(self.kv_address)

    async def stop(self) -> None:
        """Die: the connections first, so that nobody reads what a held engine computes now."""
        await self.server.close()
        self.gate.open.set()
        await self.node.close()


@asynccontextmanager
async def linked(
    nodes: Sequence[RunningNode], patience: Patience = PATIENCE
) -> AsyncGenerator[list[NodeLink]]:
    """Have the nodes listen, and an edge connected to each; in the end all of it is closed."""
    for each in nodes:
        await each.listen()
    links = [NodeLink(n.node.id, n.address, hello("edge"), patience) for n in nodes]
    try:
        async with asyncio.timeout(60):
            await until(lambda: all(link.is_up for link in links))
        yield links
    finally:
        for link in links:
            await link.close()
        for each in nodes:
            await each.stop()


class Platform:
    """Nodes and links; the first is tried first, unless the prompt is computed on the last."""

    def __init__(self, nodes: list[RunningNode], links: list[NodeLink]) -> None:
        self.nodes, self.links = nodes, links
        self.is_split = False
        self.region = RemoteRegion(lambda: links, self)

    def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
        for node, link in zip(self.nodes, self.links, strict=True):
            if link.is_up and link.node not in earlier.failed:
                prefill = self.links[-1] if self.is_split and not submit.output_ids else None
                yield Route(decode=link, prefill=prefill, kv_address=str(node.kv_address))


@asynccontextmanager
async def linked_platform(*nodes: RunningNode) -> AsyncGenerator[Platform]:
    """Link nodes while the block runs; no block of theirs is in use afterwards."""
    async with linked(nodes) as links:
        yield Platform(list(nodes), links)
    assert all(each.engine.pool.num_used == 0 for each in nodes)


class InOrder:
    """Places on the first node that has not failed the request."""

    def __init__(self, links: Sequence[NodeLink]) -> None:
        self.links = links

    def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
        for tried in (False, True):
            for link in self.links:
                if link.is_up and (link.node in earlier.failed) is tried:
                    yield Route(decode=link)


class OnlyOn:
    """Places on one node."""

    def __init__(self, link: NodeLink) -> None:
        self._link = link

    def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
        yield Route(decode=self._link)


@asynccontextmanager
async def silent_socket(path: Path) -> AsyncGenerator[str]:
    """Address of somebody who takes KV and never says a word."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_unix_server(listen, path / "silent.sock"):
        yield f"unix:{path}/silent.sock"


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (many conditions, each in another thread)
            await asyncio.sleep(0.005)


def submit(**changes: object) -> Submit:
    sampling = Sampling(max_tokens=40, logprobs=2)
    base = Submit(stream=1, request_id="r", model=MODEL, prompt_ids=PROMPT, sampling=sampling)
    return msgspec.structs.replace(base, **changes)


def greedy_oracle(count: int) -> list[int]:
    tokens = list(PROMPT)
    for _ in range(count):
        tokens.append(next_token(np.array(tokens, np.int64), VOCABULARY))
    return tokens[len(PROMPT) :]


async def after_tokens(
    stream: RemoteStream, count: int, ids: Sequence[int] = ()
) -> tuple[list[int], list[object]]:
    """Read on, after the tokens that were read before, until there are `count`; leave it open."""
    ids = list(ids)
    logprobs: list[object] = []
    while len(ids) < count:
        event = await anext(stream)
        assert isinstance(event, Tokens)
        ids += event.token_ids
        logprobs += event.logprobs or []
    return ids, logprobs


async def read(
    stream: RemoteStream, ids: Sequence[int] = (), logprobs: Sequence[object] = ()
) -> tuple[list[int], list[object], Done]:
    """Tokens and logprobs to the end, after those that were read before."""
    ids, logprobs = list(ids), list(logprobs)
    async for event in stream:
        if isinstance(event, Done):
            return ids, logprobs, event
        assert event.index == len(ids)
        ids += event.token_ids
        logprobs += event.logprobs or []
    raise AssertionError("a stream without an end")


SAMPLINGS = {
    "greedy": Sampling(max_tokens=40, logprobs=2),
    "sampled": Sampling(max_tokens=40, logprobs=2, temperature=40.0, top_p=0.9, seed=11),
    "penalties": Sampling(
        max_tokens=40, logprobs=2, temperature=20.0, seed=3, repetition_penalty=1.2,
        frequency_penalty=0.5, presence_penalty=0.7,
    ),
}  # fmt: skip
