"""Nodes of which one has a prefix, and an edge that sends another to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.regions.toy_nodes import (
    PROMPT,
    OnlyOn,
    RunningNode,
    greedy_oracle,
    linked,
    read,
    submit,
    until,
)

from skerry_core.config import KVDtype
from skerry_regions.digests import full_block_digests
from skerry_regions.region.placer import EarlierAttempts, KVFetch, Route
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.protocol import (
    Sampling,
    Submit,
)

HOLDER, SERVER, SPARE = range(3)

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
        await until(lambda: all(not connector.shares for connector in connectors))
        await until(lambda: all(node.engine.pool.num_used == 0 for node in nodes))
        assert not any(connector.incoming.expected for connector in connectors)
        assert all(connector.incoming.receiver.staged_bytes == 0 for connector in connectors)
