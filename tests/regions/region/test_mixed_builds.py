"""KV of another numeric build: only for requests that say so, and never seen by others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.regions.toy_nodes import (
    PROMPT,
    OnlyOn,
    RunningNode,
    greedy_oracle,
    linked,
    read,
    submit,
)

from skerry_regions.digests import full_block_digests
from skerry_regions.region.placer import EarlierAttempts, Route
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.protocol import Submit

pytestmark = pytest.mark.anyio


class Split:
    """Prefills on one build and decodes on another, whatever the request says."""

    def __init__(self, nodes: list[RunningNode], links: list[NodeLink]) -> None:
        self.prefill, self.decode = nodes
        self._links = links
        self.region = RemoteRegion(lambda: links, self)
        self.on_decode = RemoteRegion(lambda: links, OnlyOn(links[1]))

    def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
        prefill, decode = self._links
        yield Route(decode=decode, prefill=prefill, kv_address=str(self.decode.kv_address))


@asynccontextmanager
async def split(path: Path) -> AsyncGenerator[Split]:
    nodes = [RunningNode("prefill", path), RunningNode("decode", path, dtype="float32")]
    async with linked(nodes) as links:
        yield Split(nodes, links)
    assert all(node.engine.pool.num_used == 0 for node in nodes)


async def answer(region: RemoteRegion, *, mixed_builds: bool) -> int:
    """Ask; tokens of the prompt that the stream's first node had cached."""
    asked = submit(mixed_builds=mixed_builds, cache_key=b"tenant")
    ids, _, done = await read(await region.generate(asked))
    assert ids == greedy_oracle(40)
    return done.usage.cached_tokens


async def test_without_consent_the_decode_node_computes(tmp_path: Path) -> None:
    async with split(tmp_path) as p:
        await answer(p.region, mixed_builds=False)
        assert p.decode.num_computed == len(PROMPT) + 39


async def test_with_consent_it_takes_what_the_other_build_computed(tmp_path: Path) -> None:
    async with split(tmp_path) as p:
        await answer(p.region, mixed_builds=True)
        assert p.decode.num_computed == 39


async def test_what_was_built_so_is_not_found_under_the_prompts_own_name(tmp_path: Path) -> None:
    async with split(tmp_path) as p:
        await answer(p.region, mixed_builds=True)
        names = full_block_digests(b"toy", b"tenant", PROMPT)
        assert p.decode.engine.pool.match(names) == 0
        assert p.decode.engine.pool.num_cached > 0
        for mixed_builds in (True, False):  # here nobody brings KV: the node's own bits are wanted
            before = p.decode.num_computed
            cached = await answer(p.on_decode, mixed_builds=mixed_builds)
            assert p.decode.num_computed - before == len(PROMPT) - cached + 39
            assert cached == (0 if mixed_builds else 128)
