"""A cached prefix from a peer: what it sends is not computed, and what it does not costs time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.regions.kv.peers import SERVER, SPARE, platform
from tests.regions.toy_nodes import (
    PROMPT,
    SAMPLINGS,
    greedy_oracle,
    read,
    submit,
    until,
)

from skerry_core.config import BLOCK_SIZE
from skerry_regions.wire.reports import Fetched, Report

pytestmark = pytest.mark.anyio

CACHED = len(PROMPT) // BLOCK_SIZE * BLOCK_SIZE


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
