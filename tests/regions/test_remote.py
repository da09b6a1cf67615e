"""Streams over real sockets to real engines, and the death of nodes under them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event as ThreadEvent

import msgspec
import numpy as np
import pytest

from skerry.errors import InvalidInput, ModelNotFound, Overloaded, RequestTimeout, Unavailable
from skerry_core.batch import Batch
from skerry_core.config import EngineConfig
from skerry_core.engine import Engine
from skerry_core.runners.toy import ToyRunner, next_token
from skerry_regions.address import Address
from skerry_regions.node import Node
from skerry_regions.node_link import NodeLink, Patience
from skerry_regions.node_server import NodeServer
from skerry_regions.protocol import Done, Hello, ModelBuild, Sampling, Submit, Tokens
from skerry_regions.remote import RemoteRegion, RemoteStream, RetryPolicy

pytestmark = pytest.mark.anyio

MODEL = "@cf/skerry/toy"
VOCABULARY = 256
PROMPT = [(7 * i + 3) % VOCABULARY for i in range(150)]
PATIENCE = Patience(ping=0.02, silence=0.3, stuck=0.3, reconnect=0.01)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def hello(id: str) -> Hello:
    build = ModelBuild(id=MODEL, tokenizer="t", template="c")
    return Hello(versions=[1], id=id, models=[build])


class Gate:
    """Lets a node compute a number of steps, then holds its engine until opened."""

    def __init__(self) -> None:
        self.steps_left: int | None = None
        self.open = ThreadEvent()

    def __call__(self, batch: Batch) -> None:
        if self.steps_left is not None:
            if self.steps_left == 0:
                self.open.wait(10)
            else:
                self.steps_left -= 1


class RunningNode:
    def __init__(self, name: str, path: Path, config: EngineConfig | None = None) -> None:
        self.gate = Gate()
        runner = ToyRunner(num_blocks=64, vocab_size=VOCABULARY, before_step=self.gate)
        self.engine = Engine(runner, config or EngineConfig(), model_key=b"toy")
        self.node = Node(id=name, region="here", loop=asyncio.get_running_loop())
        self.node.serve(MODEL, self.engine)
        self.server = NodeServer(self.node, hello(name))
        self.address = Address(path=str(path / f"{name}.sock"))

    async def stop(self) -> None:
        self.gate.open.set()
        await self.server.close()
        await self.node.close()


class InOrder:
    """Places on the first node that has not failed the request."""

    def __init__(self, links: Sequence[NodeLink]) -> None:
        self.links = links

    def place(self, submit: Submit, failed: frozenset[str]) -> Iterator[NodeLink]:
        yield from (link for link in self.links if link.is_up and link.node not in failed)
        yield from (link for link in self.links if link.is_up and link.node in failed)


class Platform:
    def __init__(self, nodes: list[RunningNode], links: list[NodeLink], policy: RetryPolicy):
        self.nodes, self.links = nodes, links
        self.region = RemoteRegion(lambda: links, InOrder(links), policy)


@asynccontextmanager
async def platform(
    path: Path,
    *,
    count: int = 2,
    policy: RetryPolicy | None = None,
    config: EngineConfig | None = None,
) -> AsyncIterator[Platform]:
    nodes = [RunningNode(f"node-{i}", path, config) for i in range(count)]
    for each in nodes:
        await each.server.listen(each.address)
    links = [NodeLink(n.node.id, n.address, hello("edge"), PATIENCE) for n in nodes]
    try:
        async with asyncio.timeout(5):
            await asyncio.gather(*(link.wait_until_up() for link in links))
        yield Platform(nodes, links, policy or RetryPolicy())
    finally:
        for link in links:
            await link.close()
        for each in nodes:
            await each.stop()


def submit(**changes: object) -> Submit:
    sampling = Sampling(max_tokens=40, logprobs=2)
    base = Submit(stream=1, request_id="r", model=MODEL, prompt_ids=PROMPT, sampling=sampling)
    return msgspec.structs.replace(base, **changes)


def greedy_oracle(count: int) -> list[int]:
    tokens = list(PROMPT)
    for _ in range(count):
        tokens.append(next_token(np.array(tokens, np.int64), VOCABULARY))
    return tokens[len(PROMPT) :]


async def read(stream: RemoteStream) -> tuple[list[int], list[object], Done]:
    ids: list[int] = []
    logprobs: list[object] = []
    async for event in stream:
        if isinstance(event, Done):
            return ids, logprobs, event
        assert event.index == len(ids)
        ids += event.token_ids
        logprobs += event.logprobs or []
    raise AssertionError("a stream without an end")


async def after_tokens(stream: RemoteStream, count: int) -> tuple[list[int], list[object]]:
    """Read the first `count` tokens and leave the stream open."""
    ids: list[int] = []
    logprobs: list[object] = []
    while len(ids) < count:
        event = await anext(stream)
        assert isinstance(event, Tokens)
        ids += event.token_ids
        logprobs += event.logprobs or []
    return ids, logprobs


SAMPLINGS = {
    "greedy": Sampling(max_tokens=40, logprobs=2),
    "sampled": Sampling(max_tokens=40, logprobs=2, temperature=40.0, top_p=0.9, seed=11),
    "penalties": Sampling(
        max_tokens=40, logprobs=2, temperature=20.0, seed=3, repetition_penalty=1.2,
        frequency_penalty=0.5, presence_penalty=0.7,
    ),
}  # fmt: skip


async def test_a_stream_over_a_socket_gives_the_models_tokens(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        ids, logprobs, done = await read(await p.region.generate(submit()))
        assert ids == greedy_oracle(40)
        assert len(logprobs) == 40
        assert (done.finish_reason, done.usage.output_tokens) == ("length", 40)


@pytest.mark.parametrize("how", ["closed", "hung engine", "drained"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_a_stream_goes_on_where_its_node_left_it(
    tmp_path: Path, sampling: str, how: str
) -> None:
    async with platform(tmp_path) as p:
        want = await read(await p.region.generate(submit(sampling=SAMPLINGS[sampling])))
        first = p.nodes[0]
        if how == "hung engine":
            first.gate.steps_left = 12
        stream = await p.region.generate(submit(sampling=SAMPLINGS[sampling], request_id="again"))
        ids, logprobs = await after_tokens(stream, 7)
        if how == "closed":
            await first.stop()
        elif how == "drained":
            await first.server.drain(0.0)
        more_ids, more_logprobs = await read_rest(stream, ids, logprobs)
        assert (more_ids, more_logprobs) == want[:2]
        assert stream.num_attempts == 2


async def read_rest(
    stream: RemoteStream, ids: list[int], logprobs: list[object]
) -> tuple[list[int], list[object]]:
    async for event in stream:
        if isinstance(event, Done):
            assert event.usage.output_tokens == len(ids)
            break
        assert event.index == len(ids)
        ids += event.token_ids
        logprobs += event.logprobs or []
    return ids, logprobs


async def test_the_only_node_may_come_back(tmp_path: Path) -> None:
    async with platform(tmp_path, count=1) as p:
        stream = await p.region.generate(submit())
        ids, logprobs = await after_tokens(stream, 5)
        await p.nodes[0].stop()
        p.nodes[0] = RunningNode("node-0", tmp_path)
        await p.nodes[0].server.listen(p.nodes[0].address)
        assert (await read_rest(stream, ids, logprobs))[0] == greedy_oracle(40)


async def test_without_any_node_a_stream_ends_when_patience_does(tmp_path: Path) -> None:
    policy = RetryPolicy(patience=0.1, pause=0.01)
    async with platform(tmp_path, count=1, policy=policy) as p:
        stream = await p.region.generate(submit())
        ids, logprobs = await after_tokens(stream, 5)
        await p.nodes[0].stop()
        with pytest.raises(Unavailable):
            await read_rest(stream, ids, logprobs)
        assert ids == greedy_oracle(len(ids))


async def test_a_full_node_passes_a_new_request_on(tmp_path: Path) -> None:
    config = EngineConfig(max_running=1, max_waiting=1)
    async with platform(tmp_path, config=config) as p:
        for node in p.nodes:
            node.gate.steps_left = 0
        # Each node takes one to run and one to wait.
        held = [await p.region.generate(submit(request_id=f"{number}")) for number in range(4)]
        assert [stream.num_attempts for stream in held] == [1, 1, 2, 2]
        with pytest.raises(Overloaded) as refused:
            await p.region.generate(submit(request_id="one too many"))
        assert refused.value.retry_after is not None
        for stream in held:
            stream.abort()


async def test_a_wrong_request_is_not_tried_twice(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        with pytest.raises(InvalidInput):
            await p.region.generate(submit(prompt_ids=[VOCABULARY]))
        with pytest.raises(ModelNotFound):
            await p.region.generate(submit(model="@cf/none/none"))


async def test_a_deadline_holds_over_all_attempts(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        for node in p.nodes:
            node.gate.steps_left = 3
        stream = await p.region.generate(submit(seconds_left=0.8))
        with pytest.raises(RequestTimeout):
            await read(stream)


async def test_abort_frees_the_blocks_and_still_tells_the_usage(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        stream = await p.region.generate(submit(sampling=Sampling(max_tokens=3000)))
        await after_tokens(stream, 3)
        stream.abort()
        _, _, done = await read_to_done(stream)
        assert done.finish_reason == "cancelled"
        assert p.nodes[0].engine.pool.num_used == 0


async def read_to_done(stream: RemoteStream) -> tuple[list[int], list[object], Done]:
    async for event in stream:
        if isinstance(event, Done):
            return [], [], event
    raise AssertionError("a stream without an end")
