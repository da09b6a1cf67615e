"""Streams over real sockets to real engines, and the death of nodes under them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.regions.toy_nodes import (
    HASTY,
    PATIENCE,
    PROMPT,
    SAMPLINGS,
    VOCABULARY,
    InOrder,
    RunningNode,
    after_tokens,
    greedy_oracle,
    linked,
    read,
    submit,
    until,
)

from skerry.errors import InvalidInput, ModelNotFound, Overloaded, RequestTimeout, Unavailable
from skerry_core.config import EngineConfig
from skerry_regions.region.recovery import RecoveryPolicy
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.region.remote_stream import RemoteStream
from skerry_regions.wire.link import NodeLink, Patience
from skerry_regions.wire.protocol import Sampling, Tokens

pytestmark = pytest.mark.anyio


class Platform:
    def __init__(self, nodes: list[RunningNode], links: list[NodeLink], policy: RecoveryPolicy):
        self.nodes, self.links = nodes, links
        self.region = RemoteRegion(lambda: links, InOrder(links), policy)


@asynccontextmanager
async def platform(
    path: Path,
    *,
    count: int = 2,
    policy: RecoveryPolicy | None = None,
    config: EngineConfig | None = None,
    patience: Patience = PATIENCE,
) -> AsyncGenerator[Platform]:
    nodes = [RunningNode(f"node-{i}", path, config) for i in range(count)]
    async with linked(nodes, patience) as links:
        yield Platform(nodes, links, policy or RecoveryPolicy())


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
    patience = HASTY if how == "hung engine" else PATIENCE
    async with platform(tmp_path, patience=patience) as p:
        want = await read(await p.region.generate(submit(sampling=SAMPLINGS[sampling])))
        first = p.nodes[0]
        first.gate.hold_after(7)
        stream = await p.region.generate(submit(sampling=SAMPLINGS[sampling], request_id="again"))
        ids, logprobs = await after_tokens(stream, 7)
        if how == "closed":
            await first.stop()
        elif how == "drained":
            await first.server.drain(0.0)
            first.gate.open.set()
        assert (await read(stream, ids, logprobs))[:2] == want[:2]
        assert stream.num_attempts == 2


async def test_a_pause_of_the_edge_is_no_silence_of_its_nodes(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        p.nodes[0].gate.hold_after(12)
        stream = await p.region.generate(submit())
        ids, _ = await after_tokens(stream, 7)
        time.sleep(2 * PATIENCE.silence)  # noqa: ASYNC251  as if the process was not scheduled
        p.nodes[0].gate.open.set()
        assert (await read(stream, ids))[0] == greedy_oracle(40)
        assert stream.num_attempts == 1


async def test_the_only_node_may_come_back(tmp_path: Path) -> None:
    async with platform(tmp_path, count=1) as p:
        p.nodes[0].gate.hold_after(5)
        stream = await p.region.generate(submit())
        ids, _ = await after_tokens(stream, 5)
        await p.nodes[0].stop()
        p.nodes[0] = RunningNode("node-0", tmp_path)
        await p.nodes[0].listen()
        assert (await read(stream, ids))[0] == greedy_oracle(40)


async def test_without_any_node_a_stream_ends_when_patience_does(tmp_path: Path) -> None:
    policy = RecoveryPolicy(patience=0.1, pause=0.01)
    async with platform(tmp_path, count=1, policy=policy) as p:
        p.nodes[0].gate.hold_after(5)
        stream = await p.region.generate(submit())
        ids, _ = await after_tokens(stream, 5)
        await p.nodes[0].stop()
        with pytest.raises(Unavailable):
            await read(stream, ids)


async def test_a_request_waits_for_a_node_that_is_being_restarted(tmp_path: Path) -> None:
    async with platform(tmp_path, count=1, policy=RecoveryPolicy(pause=0.01)) as p:
        await p.nodes[0].stop()
        asking = asyncio.create_task(p.region.generate(submit()))
        while p.links[0].is_up:  # noqa: ASYNC110  (its event tells when it is up)
            await asyncio.sleep(0)
        assert not asking.done()
        p.nodes[0] = RunningNode("node-0", tmp_path)
        await p.nodes[0].listen()
        assert (await read(await asking))[0] == greedy_oracle(40)


async def test_but_not_for_long(tmp_path: Path) -> None:
    async with platform(tmp_path, count=1, policy=RecoveryPolicy(start_patience=0.05)) as p:
        await p.nodes[0].stop()
        with pytest.raises(Unavailable):
            await p.region.generate(submit())


async def test_a_full_node_passes_a_new_request_on(tmp_path: Path) -> None:
    config = EngineConfig(max_running=1, max_waiting=1)
    async with platform(tmp_path, config=config) as p:
        for node in p.nodes:
            node.gate.hold_after(0)
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
            node.gate.hold_after(3)
        with pytest.raises(RequestTimeout):
            await read(await p.region.generate(submit(seconds_left=0.8)))


async def test_abort_frees_the_blocks_and_still_tells_the_usage(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        p.nodes[0].gate.hold_after(3)
        stream = await p.region.generate(submit())
        ids, _ = await after_tokens(stream, 3)
        stream.abort()
        p.nodes[0].gate.open.set()
        _, _, done = await read(stream, ids)
        assert done.finish_reason == "cancelled"
        assert p.nodes[0].engine.pool.num_used == 0


async def test_a_stream_aborted_while_it_looks_for_a_node_ends(tmp_path: Path) -> None:
    async with platform(tmp_path, count=1) as p:
        p.nodes[0].gate.hold_after(3)
        stream = await p.region.generate(submit())
        ids, _ = await after_tokens(stream, 3)
        await p.nodes[0].stop()
        reading = asyncio.create_task(read(stream, ids))
        await until(lambda: stream._attempt is None)
        stream.abort()
        async with asyncio.timeout(60):
            assert (await reading)[2].finish_reason == "cancelled"


async def test_prompt_logprobs_are_told_once(tmp_path: Path) -> None:
    """Also when the node that told some of them dies before the first token."""
    asked = submit(prompt_logprobs=1, sampling=Sampling(max_tokens=2))
    async with platform(tmp_path, config=EngineConfig(max_step_tokens=32)) as p:
        want = await prompt_logprobs(await p.region.generate(asked))
        assert len(want) == len(PROMPT) - 1
        p.nodes[0].gate.hold_after(3)
        stream = await p.region.generate(asked)
        first = await anext(stream)
        assert isinstance(first, Tokens)
        assert first.prompt_logprobs
        assert not first.token_ids
        await p.nodes[0].stop()
        told = [*first.prompt_logprobs, *await prompt_logprobs(stream)]
        assert told == want
        assert stream.num_attempts == 2


async def prompt_logprobs(stream: RemoteStream) -> list[object]:
    told: list[object] = []
    async for event in stream:
        if isinstance(event, Tokens):
            told += event.prompt_logprobs or []
    return told
