"""Texts to vectors on a node: in process and over sockets, refused, aborted, and on a dead node."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.core.random_encoders import KERNELS, write_encoder
from tests.regions.toy_nodes import PATIENCE, InOrder, until

from skerry.errors import InvalidInput, ModelNotFound, Overloaded, SkerryError, Unavailable
from skerry_core.encoder import worker as encoder_worker
from skerry_core.encoder.encoder import Encoder
from skerry_core.weights.tensors import Float32
from skerry_regions.address import Address
from skerry_regions.node.node import Node
from skerry_regions.region.local import LocalRegion
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.wire.client import RegionClient
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.listener import NodeServer
from skerry_regions.wire.protocol import Embed, Hello, ModelBuild

pytestmark = pytest.mark.anyio

MODEL = "@cf/test/encoder"
TEXTS = [[1, 7, 2], [1, 2], [1, *range(3, 60), 2]]
DIMENSIONS = 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def wanted(folder: Path) -> bytes:
    encoder = Encoder.open(folder, threads=1, cache_dir=KERNELS)
    vectors = encoder.encode(TEXTS)
    encoder.close()
    return vectors.tobytes()


class Gate:
    """Holds an encoder's computations until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        encode = Encoder.encode

        def held(encoder: Encoder, texts: Sequence[Sequence[int]], **how: Any) -> Float32:
            self.reached.set()
            assert self.open.wait(30)
            return encode(encoder, texts, **how)

        monkeypatch.setattr(Encoder, "encode", held)


def embed(**changes: object) -> Embed:
    base = Embed(stream=1, request_id="r", model=MODEL, texts=TEXTS, pooling="mean", normalize=True)
    return msgspec.structs.replace(base, **changes)


def new_node(name: str, folder: Path) -> Node:
    node = Node(id=name, region="here", loop=asyncio.get_running_loop())
    node.serve_encoder(MODEL, Encoder.open(folder, threads=1, cache_dir=KERNELS))
    return node


def hello(id: str) -> Hello:
    build = ModelBuild(id=MODEL, tokenizer="t", template="")
    return Hello(versions=[1], id=id, models=[build])


class Remote:
    """Two nodes on unix sockets, and a region that reaches both."""

    def __init__(self, nodes: list[Node], servers: list[NodeServer], links: list[NodeLink]) -> None:
        self.nodes, self.servers, self.links = nodes, servers, links
        self.region = RemoteRegion(lambda: links, InOrder(links))


@asynccontextmanager
async def remote(path: Path, folder: Path) -> AsyncGenerator[Remote]:
    nodes = [new_node(f"node-{i}", folder) for i in range(2)]
    servers = [NodeServer(node, hello(node.id)) for node in nodes]
    addresses = [Address(path=str(path / f"{node.id}.sock")) for node in nodes]
    for server, address in zip(servers, addresses, strict=True):
        await server.listen(address)
    links = [
        NodeLink(node.id, address, hello("edge"), PATIENCE)
        for node, address in zip(nodes, addresses, strict=True)
    ]
    try:
        async with asyncio.timeout(60):
            await until(lambda: all(link.is_up for link in links))
        yield Remote(nodes, servers, links)
    finally:
        for link in links:
            await link.close()
        for server, node in zip(servers, nodes, strict=True):
            await server.close()
            await node.close()


async def test_in_process(folder: Path, wanted: bytes) -> None:
    region: RegionClient = LocalRegion(new_node("node", folder))
    assert region.models() == {MODEL}
    assert await region.embed(embed()) == wanted
    await region.close()


async def test_over_sockets(tmp_path: Path, folder: Path, wanted: bytes) -> None:
    async with remote(tmp_path, folder) as r:
        assert r.region.models() == {MODEL}
        answers = await asyncio.gather(*(r.region.embed(embed()) for _ in range(20)))
        assert answers == [wanted] * 20
        assert [link.num_streams for link in r.links] == [0, 0]


async def test_what_is_asked_for_decides_the_vector(folder: Path) -> None:
    region = LocalRegion(new_node("node", folder))
    raw = np.frombuffer(await region.embed(embed(pooling="cls", normalize=False)), "<f4")
    encoder = Encoder.open(folder, threads=1, cache_dir=KERNELS)
    expected = encoder.encode(TEXTS, pooling="cls", normalize=False)
    np.testing.assert_array_equal(raw.reshape(3, DIMENSIONS), expected)
    encoder.close()
    await region.close()


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"model": "@cf/other"}, ModelNotFound, "embeds by @cf/test/encoder, not @cf/other"),
        ({"texts": [[]]}, InvalidInput, "a text of 0 tokens; 1 to 70 fit"),
        ({"texts": [[1] * 71]}, InvalidInput, "a text of 71 tokens"),
        ({"texts": [[101]]}, InvalidInput, r"token ids must be in \[0, 101\)"),
        ({"texts": [[1]] * 1366}, InvalidInput, "send fewer texts at once"),
    ],
)
async def test_bad_requests_are_refused(
    folder: Path, changes: dict[str, object], error: type[SkerryError], reason: str
) -> None:
    region = LocalRegion(new_node("node", folder))
    with pytest.raises(error, match=reason):
        await region.embed(embed(**changes))
    await region.close()


async def test_a_remote_refusal_is_final(tmp_path: Path, folder: Path) -> None:
    async with remote(tmp_path, folder) as r:
        with pytest.raises(InvalidInput, match="a text of 71 tokens"):
            await r.region.embed(embed(texts=[[1] * 71]))
        with pytest.raises(Unavailable, match="no node embeds by @cf/other now"):
            await r.region.embed(embed(model="@cf/other"))


async def test_a_full_node_says_when_to_come_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_worker, "QUEUED_TOKENS", 10)
    region = LocalRegion(new_node("node", folder))
    with pytest.raises(Overloaded) as refusal:
        await region.embed(embed())
    assert refusal.value.retry_after == 1.0
    await region.close()


async def test_another_node_does_it_when_one_dies(
    tmp_path: Path, folder: Path, wanted: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    async with remote(tmp_path, folder) as r:
        answer = asyncio.create_task(r.region.embed(embed()))
        assert await asyncio.to_thread(gate.reached.wait, 30)
        (busy,) = [link for link in r.links if link.num_streams]
        server = r.servers[r.links.index(busy)]
        await server.close()
        gate.open.set()
        assert await answer == wanted


@pytest.mark.parametrize("where", ["local", "remote"])
async def test_who_goes_away_is_forgotten(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    gate = Gate(monkeypatch)
    async with remote(tmp_path, folder) as r:
        region = r.region if where == "remote" else LocalRegion(r.nodes[0])
        running = asyncio.create_task(region.embed(embed()))
        assert await asyncio.to_thread(gate.reached.wait, 30)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not any(link.num_streams for link in r.links)
        async with asyncio.timeout(60):
            while any(s.streams for node in r.nodes for s in node.status()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        gate.open.set()


async def test_a_crash_is_told_and_ends_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> Float32:
        raise MemoryError

    monkeypatch.setattr(Encoder, "encode", crash)
    node = new_node("node", folder)
    region = LocalRegion(node)
    with pytest.raises(Unavailable, match="stopped on an error of its own"):
        await region.embed(embed())
    assert node.models == frozenset()
    with pytest.raises(Unavailable):
        await region.embed(embed())
    await region.close()


async def test_closing_ends_what_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    region = LocalRegion(new_node("node", folder))
    running = asyncio.create_task(region.embed(embed()))
    assert await asyncio.to_thread(gate.reached.wait, 30)
    closing = asyncio.create_task(region.close())
    with pytest.raises(Unavailable, match="is shutting down"):
        await running
    gate.open.set()
    await closing
