"""Prefill on one node, decode on another: nothing computed twice, nothing lost between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.regions.toy_nodes import (
    MODEL,
    PROMPT,
    SAMPLINGS,
    OnlyOn,
    RunningNode,
    after_tokens,
    greedy_oracle,
    linked,
    read,
    silent_socket,
    submit,
    until,
)

from skerry.errors import Unavailable
from skerry_regions.region.placer import EarlierAttempts, Route
from skerry_regions.region.recovery import RecoveryPolicy
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.wire.client import failed_event
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.link_connection import Sink
from skerry_regions.wire.protocol import Sampling, Submit, Tokens

pytestmark = pytest.mark.anyio

PREFILL, DECODE, SPARE = range(3)


class Platform:
    """A prefill node, a decode node, and a spare that can do both; split routes come first."""

    def __init__(self, nodes: list[RunningNode], links: list[NodeLink]) -> None:
        self.nodes, self.links = nodes, links
        self.kv_address = str(nodes[DECODE].kv_address)

    def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
        prefill, decode, spare = self.links
        healthy = [link.is_up and link.node not in earlier.failed for link in self.links]
        if healthy[PREFILL] and healthy[DECODE]:
            yield Route(decode=decode, prefill=prefill, kv_address=self.kv_address)
        for link, is_healthy in ((decode, healthy[DECODE]), (spare, healthy[SPARE])):
            if is_healthy:
                yield Route(decode=link)

    def region(self, lease_seconds: float = 5.0) -> RemoteRegion:
        return RemoteRegion(lambda: self.links, self, RecoveryPolicy(lease_seconds=lease_seconds))

    def tokens_computed(self) -> list[int]:
        return [node.num_computed for node in self.nodes]

    def pools_are_whole(self) -> bool:
        return all(node.engine.pool.num_used == 0 for node in self.nodes)


@asynccontextmanager
async def platform(path: Path) -> AsyncGenerator[Platform]:
    nodes = [RunningNode(name, path) for name in ("prefill", "decode", "spare")]
    async with linked(nodes) as links:
        yield Platform(nodes, links)


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_a_split_stream_is_the_undisturbed_one(tmp_path: Path, sampling: str) -> None:
    async with platform(tmp_path) as p:
        asked = submit(sampling=SAMPLINGS[sampling])
        alone = RemoteRegion(lambda: p.links, OnlyOn(p.links[SPARE]))
        want = await read(await alone.generate(asked))
        got = await read(await p.region().generate(asked))
        assert got[:2] == want[:2]
        assert p.tokens_computed()[:2] == [len(PROMPT), 39]


async def test_usage_tells_what_only_the_prefill_node_knows(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        first = (await read(await p.region().generate(submit())))[2]
        again = (await read(await p.region().generate(submit(request_id="again"))))[2]
        assert (first.usage.cached_tokens, again.usage.cached_tokens) == (0, 128)
        assert first.usage.prefill_seconds > 0
        assert first.usage.decode_seconds > 0
        assert first.usage.output_tokens == 40


async def test_the_first_token_does_not_wait_for_the_hand_over(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        p.kv_address = f"unix:{tmp_path}/nobody.sock"
        stream = await p.region(lease_seconds=0.3).generate(submit())
        ids, _ = await after_tokens(stream, 1)
        assert ids == greedy_oracle(1)
        assert p.tokens_computed()[DECODE] == 0
        ids, _, _ = await read(stream, ids)  # the lease lapses, and the decode node computes
        assert ids == greedy_oracle(40)
        assert p.tokens_computed()[DECODE] == len(PROMPT) + 39


async def test_a_link_to_the_prefill_node_that_lags_and_breaks_loses_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decode node's first token was taken for its word that it takes the request, where the
    prefill node's word had not come yet."""
    async with platform(tmp_path) as p:
        sinks: list[Sink] = []
        undisturbed = p.links[PREFILL].submit

        def lagging(submit: Submit, sink: Sink) -> int:
            sinks.append(sink)
            return undisturbed(submit, lambda _: None)

        monkeypatch.setattr(p.links[PREFILL], "submit", lagging)

        async def broken() -> None:
            await until(lambda: p.tokens_computed()[DECODE] == 39)
            sinks[0](failed_event(0, Unavailable("the link broke")))

        breaking = asyncio.create_task(broken())
        ids, _, done = await read(await p.region().generate(submit()))
        await breaking
        assert ids == greedy_oracle(40)
        assert done.usage.output_tokens == 40
        assert p.tokens_computed() == [len(PROMPT), 39, 0]


@pytest.mark.parametrize("max_tokens", [1, 2])
async def test_very_short_answers_end_once(tmp_path: Path, max_tokens: int) -> None:
    async with platform(tmp_path) as p:
        asked = submit(sampling=Sampling(max_tokens=max_tokens))
        ids, _, done = await read(await p.region().generate(asked))
        assert ids == greedy_oracle(max_tokens)
        assert (done.finish_reason, done.usage.output_tokens) == ("length", max_tokens)


async def test_a_stop_token_made_by_the_prefill_node_ends_the_stream(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        stop = greedy_oracle(1)[0]
        asked = submit(sampling=Sampling(max_tokens=40, stop_token_ids=(stop,)))
        ids, _, done = await read(await p.region().generate(asked))
        assert (ids, done.finish_reason) == ([stop], "stop")


async def test_the_decode_node_dies_in_mid_stream(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        p.nodes[DECODE].gate.hold_after(8)  # the first token is the prefill node's
        stream = await p.region().generate(submit())
        ids, logprobs = await after_tokens(stream, 9)
        await p.nodes[DECODE].stop()
        assert (await read(stream, ids, logprobs))[0] == greedy_oracle(40)
        assert stream.num_attempts == 2


async def test_the_prefill_node_dies_before_the_first_token(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        p.nodes[PREFILL].gate.hold_after(0)
        stream = await p.region().generate(submit())
        await p.nodes[PREFILL].server.drain(0.0)
        assert (await read(stream))[0] == greedy_oracle(40)
        assert not p.nodes[DECODE].node.connector(MODEL).incoming.expected


async def test_the_prefill_node_dies_after_the_hand_over(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        p.nodes[DECODE].gate.hold_after(5)
        stream = await p.region().generate(submit())
        ids, _ = await after_tokens(stream, 3)
        await p.nodes[PREFILL].stop()
        p.nodes[DECODE].gate.open.set()
        assert (await read(stream, ids))[0] == greedy_oracle(40)
        assert stream.num_attempts == 1


async def test_the_prefill_node_dies_between_its_token_and_the_hand_over(tmp_path: Path) -> None:
    async with platform(tmp_path) as p, silent_socket(tmp_path) as p.kv_address:
        stream = await p.region(lease_seconds=60).generate(submit())
        ids, _ = await after_tokens(stream, 1)  # the prefill node's; its KV reaches nobody
        await p.nodes[PREFILL].stop()
        assert (await read(stream, ids))[0] == greedy_oracle(40)
        assert stream.num_attempts == 2
        await until(p.pools_are_whole)


async def test_a_draining_node_gives_back_who_waits_for_kv(tmp_path: Path) -> None:
    async with platform(tmp_path) as p, silent_socket(tmp_path) as p.kv_address:
        stream = await p.region(lease_seconds=60).generate(submit())
        ids, _ = await after_tokens(stream, 1)
        await p.nodes[DECODE].server.drain(0.0)
        assert (await read(stream, ids))[0] == greedy_oracle(40)
        await until(lambda: not p.nodes[DECODE].node.connector(MODEL).incoming.expected)


async def test_a_draining_prefill_node_hands_over_first(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        p.nodes[DECODE].gate.hold_after(0)
        stream = await p.region().generate(submit())
        ids, _ = await after_tokens(stream, 1)
        await p.nodes[PREFILL].server.drain(60.0)
        p.nodes[DECODE].gate.open.set()
        assert (await read(stream, ids))[0] == greedy_oracle(40)
        assert stream.num_attempts == 1
        assert p.tokens_computed()[:2] == [len(PROMPT), 39]


async def test_a_transcript_is_handed_over_with_what_it_said(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        said = greedy_oracle(100)[:60]
        asked = submit(output_ids=said, sampling=Sampling(max_tokens=100))
        stream = await p.region().generate(asked)
        got: list[int] = []
        async for event in stream:
            if isinstance(event, Tokens):
                got += event.token_ids
        assert said + got == greedy_oracle(100)
        full = (len(PROMPT) + len(said)) // 64 * 64
        computed = len(PROMPT) + 99
        assert p.tokens_computed()[:2] == [len(PROMPT) + len(said), computed - full]


@pytest.mark.parametrize("end", ["length", "stop"])
async def test_a_transcript_that_lacks_only_its_end_gets_no_token_more(
    tmp_path: Path, end: str
) -> None:
    async with platform(tmp_path) as p:
        said = greedy_oracle(20)
        sampling = (
            Sampling(max_tokens=20) if end == "length" else Sampling(stop_token_ids=(said[-1],))
        )
        stream = await p.region(lease_seconds=60).generate(
            submit(output_ids=said, sampling=sampling)
        )
        got, _, done = await read(stream, said)
        assert (got, done.finish_reason) == (said, end)
        await until(p.pools_are_whole)


@pytest.mark.parametrize("when", ["before", "during", "after"])
async def test_a_client_that_leaves_frees_both_sides(tmp_path: Path, when: str) -> None:
    async with platform(tmp_path) as p:
        if when == "before":
            p.nodes[PREFILL].gate.hold_after(0)
        p.nodes[DECODE].gate.hold_after(4)
        stream = await p.region().generate(submit(sampling=Sampling(max_tokens=3000)))
        if when == "after":
            await after_tokens(stream, 5)
        stream.abort()
        p.nodes[PREFILL].gate.open.set()
        p.nodes[DECODE].gate.open.set()
        async for event in stream:
            if not isinstance(event, Tokens):
                assert event.finish_reason == "cancelled"
        await until(p.pools_are_whole)
        assert not p.nodes[DECODE].node.connector(MODEL).incoming.expected
        assert p.nodes[DECODE].node.connector(MODEL).incoming.receiver.staged_bytes == 0


async def test_many_streams_at_once(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:

        async def one(number: int) -> list[int]:
            asked = replace(submit(request_id=f"{number}"), prompt_ids=PROMPT[: 20 + 11 * number])
            return (await read(await p.region().generate(asked)))[0]

        async def alone(number: int) -> list[int]:
            asked = replace(submit(request_id=f"a{number}"), prompt_ids=PROMPT[: 20 + 11 * number])
            region = RemoteRegion(lambda: p.links, OnlyOn(p.links[SPARE]))
            return (await read(await region.generate(asked)))[0]

        split = await asyncio.gather(*map(one, range(12)))
        assert split == await asyncio.gather(*map(alone, range(12)))
        await until(p.pools_are_whole)


async def test_a_scored_prompt_is_computed_by_one_node(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        asked = submit(prompt_logprobs=0, sampling=Sampling(max_tokens=1))
        told = 0
        async for event in await p.region().generate(asked):
            if isinstance(event, Tokens):
                told += len(event.prompt_logprobs or [])
        assert told == len(PROMPT) - 1
        assert p.tokens_computed()[:2] == [0, len(PROMPT)]
