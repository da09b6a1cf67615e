"""A cached prefix from a peer: what it sends is not computed, and what it does not costs time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.regions.toy_nodes import (
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

from skerry_core.config import BLOCK_SIZE, KVDtype
from skerry_core.engine.worker import Errand
from skerry_regions.digests import full_block_digests
from skerry_regions.kv import connector as kv_connector
from skerry_regions.kv.connector import KVConnector
from skerry_regions.kv.frames import FirstToken, Offer
from skerry_regions.kv.outgoing import OutgoingTransfer
from skerry_regions.region.placer import EarlierAttempts, KVFetch, Route
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.protocol import (
    Done,
    HandOverFrom,
    HandOverTo,
    Sampling,
    ShareKV,
    Submit,
    Tokens,
)
from skerry_regions.wire.reports import Fetched, Report

pytestmark = pytest.mark.anyio

HOLDER, SERVER, SPARE = range(3)
CACHED = len(PROMPT) // BLOCK_SIZE * BLOCK_SIZE
FOREVER = 60.0  # no test waits that long: something else ends the wait


class Platform:
    """A node that holds a prompt's blocks, and one that fetches them; a spare may decode."""

    def __init__(self, nodes: list[RunningNode], links: list[NodeLink]) -> None:
        self.nodes, self.links = nodes, links
        self.holder, self.server, self.spare = nodes
        self.kv_address = str(self.server.kv_address)
        self.lease_seconds = FOREVER
        self.is_split = False
        self.region = RemoteRegion(lambda: self.links, self)

    def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
        names = full_block_digests(b"toy", submit.cache_key, submit.prompt_ids)
        fetch = KVFetch(
            source=self.links[HOLDER],
            digests=list(names),
            kv_address=self.kv_address,
            lease_seconds=self.lease_seconds,
        )
        server, spare = self.links[SERVER], self.links[SPARE]
        if self.is_split:
            address = str(self.spare.kv_address)
            yield Route(decode=spare, prefill=server, kv_address=address, fetch=fetch)
        else:
            yield Route(decode=server, fetch=fetch)

    def alone(self, node: int) -> RemoteRegion:
        return RemoteRegion(lambda: self.links, OnlyOn(self.links[node]))

    async def warm(self, node: int, prompt: Sequence[int] = PROMPT) -> None:
        """Have a node compute a prompt."""
        asked = submit(prompt_ids=list(prompt), sampling=Sampling(max_tokens=1))
        await read(await self.alone(node).generate(asked))

    async def answer(self) -> int:
        """Ask with a fetch; what the serving node computed of the prompt."""
        before = self.server.num_computed
        async with asyncio.timeout(FOREVER / 2):
            ids, _, _ = await read(await self.region.generate(submit()))
        assert ids == greedy_oracle(40)
        return self.server.num_computed - before - 39


@asynccontextmanager
async def platform(path: Path, *, holder_dtype: KVDtype = "float16") -> AsyncGenerator[Platform]:
    nodes = [
        RunningNode("holder", path, dtype=holder_dtype),
        RunningNode("server", path),
        RunningNode("spare", path),
    ]
    async with linked(nodes) as links:
        made = Platform(nodes, links)
        await made.warm(HOLDER)
        yield made
        connectors = [node.node.connector(model) for node in nodes for model in node.node.models]
        await until(lambda: all(connector.num_shares == 0 for connector in connectors))
        await until(lambda: all(node.engine.pool.num_used == 0 for node in nodes))
        assert all(connector.incoming.num_expected == 0 for connector in connectors)
        assert all(connector.incoming.staged_bytes == 0 for connector in connectors)


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_fetched_blocks_are_not_computed(tmp_path: Path, sampling: str) -> None:
    async with platform(tmp_path) as p:
        asked = submit(sampling=SAMPLINGS[sampling])
        want = await read(await p.alone(SPARE).generate(asked))
        before = p.holder.num_computed
        got = await read(await p.region.generate(asked))
        assert got[:2] == want[:2]
        assert got[2].usage.cached_tokens == CACHED
        assert p.server.num_computed == len(PROMPT) - CACHED + 39
        assert p.holder.num_computed == before


async def test_what_the_node_has_already_does_not_travel(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        await p.warm(SERVER, PROMPT[: BLOCK_SIZE + 1])
        told: list[Fetched] = []

        def listen(report: Report) -> None:
            told.extend(report.fetched)

        connection = p.links[SERVER]._connection
        assert connection is not None
        connection._on_report = listen
        assert await p.answer() == len(PROMPT) - CACHED
        await until(lambda: bool(told))
        (fetched,) = told
        block_bytes = p.server.engine.runner.kv_format.block_bytes
        num_fetched = CACHED // BLOCK_SIZE - 1
        assert (fetched.source, fetched.num_bytes) == ("holder", num_fetched * block_bytes)
        assert fetched.seconds > 0


async def test_the_holder_may_be_draining(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        p.holder.server.draining = True
        assert await p.answer() == len(PROMPT) - CACHED


async def test_a_prefill_node_fetches_and_hands_over(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        p.is_split = True
        ids, _, done = await read(await p.region.generate(submit()))
        assert ids == greedy_oracle(40)
        assert done.usage.cached_tokens == CACHED
        assert [p.server.num_computed, p.spare.num_computed] == [len(PROMPT) - CACHED, 39]


# --- what goes wrong -----------------------------------------------------------------------------


async def test_a_stale_belief_costs_one_round_trip(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        for number in range(40):  # 64 blocks: not all prompts fit
            await p.warm(HOLDER, [number, *PROMPT])
        assert await p.answer() == len(PROMPT)


async def test_only_a_part_is_left(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        pool = p.holder.engine.pool
        names = full_block_digests(b"toy", b"", PROMPT)
        kept = pool.acquire(names[:1])
        pool.release(pool.allocate(pool.num_idle))
        pool.release(kept)
        assert await p.answer() == len(PROMPT) - BLOCK_SIZE


async def test_a_holder_that_is_gone(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        await p.holder.stop()
        await until(lambda: not p.links[HOLDER].is_up)
        assert await p.answer() == len(PROMPT)


async def test_a_holder_of_another_numeric_build(tmp_path: Path) -> None:
    async with platform(tmp_path, holder_dtype="float32") as p:
        assert await p.answer() == len(PROMPT)


async def test_a_holder_that_hangs_is_not_waited_for_longer_than_the_lease(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        p.holder.gate.hold_after(0)
        hanging = await p.alone(HOLDER).generate(submit(prompt_ids=[1, *PROMPT]))
        await until(lambda: p.holder.engine.statistics().running > 0)
        p.lease_seconds = 0.1
        assert await p.answer() == len(PROMPT)
        p.holder.gate.open.set()
        hanging.abort()


async def test_blocks_that_never_arrive(tmp_path: Path) -> None:
    async with platform(tmp_path) as p, silent_socket(tmp_path) as p.kv_address:
        p.lease_seconds = 0.1
        assert await p.answer() == len(PROMPT)


async def test_a_client_that_leaves_meanwhile(tmp_path: Path) -> None:
    async with platform(tmp_path) as p, silent_socket(tmp_path) as p.kv_address:
        stream = await p.region.generate(submit())
        stream.abort()
        done = await anext(stream)
        assert done.finish_reason == "cancelled"  # type: ignore[union-attr]
        for connector in (node.node.connector(submit().model) for node in p.nodes):
            connector.end_shares()


async def test_the_fetching_node_hands_the_stream_back(tmp_path: Path) -> None:
    async with platform(tmp_path) as p, silent_socket(tmp_path) as p.kv_address:
        p.lease_seconds = 0.2
        stream = await p.region.generate(submit())
        await p.server.server.drain(0.0)
        p.server.server.draining = False
        p.kv_address = str(p.server.kv_address)
        ids, _ = await after_tokens(stream, 5)
        assert (await read(stream, ids))[0] == greedy_oracle(40)
        assert stream.num_attempts == 2


async def test_what_is_shared_at_once_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with platform(tmp_path) as p:
        block_bytes = p.holder.engine.runner.kv_format.block_bytes
        monkeypatch.setattr(kv_connector, "SHARED_BYTES", block_bytes)
        assert await p.answer() == len(PROMPT) - BLOCK_SIZE


async def test_a_sink_that_fails_at_the_first_token_costs_no_step(tmp_path: Path) -> None:
    told: list[object] = []

    def broken(event: object) -> None:
        told.append(event)
        raise OSError("gone")

    async with platform(tmp_path) as p:
        source = HandOverFrom(transfer=7, token=bytes(32), lease_seconds=FOREVER)
        before = p.server.num_computed
        p.server.node.submit(submit(hand_over_from=source), broken)
        kv = p.server.engine.runner.kv_format
        offer = Offer(
            transfer=7, token=bytes(32), request_id="r", epoch=0,
            numeric_build=p.server.engine.runner.numeric_build, kv_dtype=kv.dtype,
            block_bytes=kv.block_bytes, num_layers=kv.num_layers, digests=[],
        )  # fmt: skip
        sending = OutgoingTransfer(p.server.kv_address, offer)
        sending.finish(FirstToken([greedy_oracle(1)[0]]))
        await until(lambda: len(told) == 2)
        assert [type(event) for event in told] == [Tokens, Done]
        answered = submit(prompt_ids=[5], sampling=Sampling(max_tokens=1))
        await read(await p.alone(SERVER).generate(answered))
        assert p.server.num_computed == before + 1
        sending.cancel()


async def test_a_share_that_is_called_off_copies_nothing_more(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        errands: list[Errand] = []
        connector = KVConnector(p.holder.engine, errands.append)
        incoming = p.server.node.connector(submit().model).incoming
        arriving = incoming.expect(7, bytes(32), FOREVER)
        to = HandOverTo(address=str(p.server.kv_address), transfer=7, token=bytes(32))
        names = list(full_block_digests(b"toy", b"", PROMPT))
        connector.share(ShareKV(model="m", digests=names, to=to, lease_seconds=FOREVER))
        await until(lambda: len(errands) == 1)
        errands[0](p.holder.engine)
        assert p.holder.engine.pool.num_used == len(names)
        connector.end_shares()
        assert await arriving is None
        await until(lambda: len(errands) == 2)
        errands[1](p.holder.engine)
        assert p.holder.engine.pool.num_used == 0
        await connector.close()


async def test_a_block_evicted_since_the_offer_calls_it_off(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        pool = p.holder.engine.pool
        worker = p.holder.node._served[submit().model]._worker

        def evict_first(errand: Errand) -> None:
            pool.release(pool.allocate(pool.num_idle))
            worker.between_steps(errand)

        connector = KVConnector(p.holder.engine, evict_first)
        names = list(full_block_digests(b"toy", b"", PROMPT))
        incoming = p.server.node.connector(submit().model).incoming
        arriving = incoming.expect(7, bytes(32), FOREVER)
        to = HandOverTo(address=str(p.server.kv_address), transfer=7, token=bytes(32))
        connector.share(ShareKV(model="m", digests=names, to=to, lease_seconds=FOREVER))
        assert await arriving is None
        await connector.close()
