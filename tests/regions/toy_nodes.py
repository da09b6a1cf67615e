"""Nodes of the toy model on unix sockets, for tests of what lies between edge and engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event as ThreadEvent

import msgspec
import numpy as np

from skerry_core.batch import Batch
from skerry_core.config import EngineConfig
from skerry_core.engine import Engine
from skerry_core.runners.toy import ToyRunner, next_token
from skerry_regions.address import Address
from skerry_regions.grammars import Grammars
from skerry_regions.node import Node
from skerry_regions.node_link import NodeLink, Patience
from skerry_regions.node_server import NodeServer
from skerry_regions.protocol import Done, Hello, ModelBuild, Sampling, Submit, Tokens
from skerry_regions.remote import RemoteStream, Route

MODEL = "@cf/skerry/toy"
VOCABULARY = 257
PROMPT = [(7 * i + 3) % VOCABULARY for i in range(150)]
PATIENCE = Patience(ping=0.02, silence=0.3, stuck=0.3, reconnect=0.01)


def hello(id: str) -> Hello:
    build = ModelBuild(id=MODEL, tokenizer="t", template="c")
    return Hello(versions=[1], id=id, models=[build])


class Gate:
    """Counts the tokens of a node's steps; lets it run some, then holds its engine until opened."""

    def __init__(self) -> None:
        self.steps_left: int | None = None
        self.open = ThreadEvent()
        self.tokens: list[int] = []

    def __call__(self, batch: Batch) -> None:
        if self.steps_left is not None:
            if self.steps_left == 0:
                self.open.wait(10)
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
    ) -> None:
        self.gate = Gate()
        runner = ToyRunner(num_blocks=num_blocks, vocab_size=VOCABULARY, before_step=self.gate)
        self.engine = Engine(runner, config or EngineConfig(), model_key=b"toy")
        self.node = Node(
            id=name, region="here", loop=asyncio.get_running_loop(), incarnation=incarnation
        )
        self.node.serve(MODEL, self.engine, grammars)
        self.server = NodeServer(self.node, hello(name))
        self.address = Address(path=str(path / f"{name}.sock"))
        self.kv_address = Address(path=str(path / f"{name}.kv.sock"))

    async def listen(self) -> None:
        await self.server.listen(self.address)
        await self.node.desk(MODEL).incoming.listen(self.kv_address)

    async def stop(self) -> None:
        self.gate.open.set()
        await self.server.close()
        await self.node.close()


class InOrder:
    """Places on the first node that has not failed the request."""

    def __init__(self, links: Sequence[NodeLink]) -> None:
        self.links = links

    def place(self, submit: Submit, failed: frozenset[str]) -> Iterator[Route]:
        for tried in (False, True):
            for link in self.links:
                if link.is_up and (link.node in failed) is tried:
                    yield Route(decode=link)


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
