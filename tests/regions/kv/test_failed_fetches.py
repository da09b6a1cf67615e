"""A prefix that does not come from a peer, in part or at all: it costs time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.regions.kv.peers import FOREVER, HOLDER, SERVER, platform
from tests.regions.toy_nodes import (
    PROMPT,
    after_tokens,
    greedy_oracle,
    read,
    silent_socket,
    submit,
    until,
)

from skerry_core.config import BLOCK_SIZE
from skerry_core.engine.worker import Errand
from skerry_regions.digests import full_block_digests
from skerry_regions.kv import connector as kv_connector
from skerry_regions.kv.connector import KVConnector
from skerry_regions.kv.frames import FirstToken, Offer
from skerry_regions.kv.outgoing import OutgoingTransfer
from skerry_regions.wire.protocol import (
    Done,
    HandOverFrom,
    HandOverTo,
    Sampling,
    ShareKV,
    Tokens,
)

pytestmark = pytest.mark.anyio


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
