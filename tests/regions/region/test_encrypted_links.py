"""What passes between machines, and what goes on there while their certificates change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from tests.regions.toy_nodes import (
    CALM,
    PROMPT,
    RunningNode,
    greedy_oracle,
    hello,
    read,
    submit,
    until,
)
from tests.regions.wire.tls_links import KEY, Machines, Tap

from skerry_regions.kv import outgoing
from skerry_regions.kv.frames import Frame, Segment, on_host
from skerry_regions.region.placer import EarlierAttempts, Route
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.link_auth import LinkCredentials
from skerry_regions.wire.protocol import Sampling, Submit

CACHE_KEY = bytes(range(32))
WINDOW = 24  # bytes that are looked for

pytestmark = pytest.mark.anyio


@dataclass
class Split:
    """A prefill node, a decode node and an edge on machines of their own; every link is tapped."""

    region: RemoteRegion = field(init=False)
    nodes: list[RunningNode]
    taps: dict[str, Tap]
    links: list[NodeLink]
    kv_address: str

    def __post_init__(self) -> None:
        self.region = RemoteRegion(lambda: self.links, self)

    def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
        prefill, decode = self.links
        yield Route(decode=decode, prefill=prefill, kv_address=self.kv_address)


@asynccontextmanager
async def split(
    path: Path, prefill: LinkCredentials, decode: LinkCredentials, edge: LinkCredentials
) -> AsyncGenerator[Split]:
    async with AsyncExitStack() as stack:
        nodes, links, taps = list[RunningNode](), list[NodeLink](), dict[str, Tap]()
        for name, own in (("prefill", prefill), ("decode", decode)):
            node = RunningNode(name, path, num_blocks=2048, credentials=own)
            await node.listen()
            stack.push_async_callback(node.stop)
            taps[name] = Tap()
            at = await stack.enter_async_context(taps[name].before(node.address))
            known = edge.towards(own.machine)
            links.append(NodeLink(name, at, hello("edge"), CALM, credentials=known))
            stack.push_async_callback(links[-1].close)
            nodes.append(node)
        taps["kv"] = Tap()
        kv = await stack.enter_async_context(taps["kv"].before(nodes[1].kv_address))
        async with asyncio.timeout(60):
            await until(lambda: all(link.is_up for link in links))
        yield Split(nodes, taps, links, str(kv))


def segments(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """KV bytes that a node sends from now on, before they are encrypted."""
    sent: list[bytes] = []
    encode = outgoing.encode

    def kept(frame: Frame) -> object:
        if isinstance(frame, Segment):
            sent.append(bytes(on_host(frame.payload)))
        return encode(frame)

    monkeypatch.setattr(outgoing, "encode", kept)
    return sent


def windows(data: bytes) -> list[bytes]:
    """Pieces of it that are like no other bytes."""
    pieces = [data[i : i + WINDOW] for i in range(0, len(data) - WINDOW, WINDOW)]
    return [piece for piece in pieces if len(set(piece)) > 3]


@pytest.mark.parametrize("is_encrypted", [True, False])
async def test_no_token_kv_or_key_is_in_what_passes_between_machines(
    tmp_path: Path, is_encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the clear, which one machine alone does, all but keys is seen: the taps do work."""
    machines, sent = Machines(tmp_path / "authority"), segments(monkeypatch)
    own = dict.fromkeys(("p", "d", "e"), KEY)
    if is_encrypted:
        own = {"p": machines.of("p", "node"), "d": machines.of("d", "node"),
               "e": machines.of("e", "edge")}  # fmt: skip
    async with split(tmp_path, own["p"], own["d"], own["e"]) as platform:
        asked = submit(sampling=Sampling(max_tokens=8), cache_key=CACHE_KEY)
        ids, _, _ = await read(await platform.region.generate(asked))
        assert ids == greedy_oracle(8)
        assert platform.nodes[0].num_computed == len(PROMPT)
        seen = {name: bytes(tap.bytes) for name, tap in platform.taps.items()}
    assert len(sent) == len(PROMPT) // 64 + 1
    prompt = msgspec.msgpack.encode(PROMPT)[3:]
    for name in ("prefill", "decode"):
        assert (prompt in seen[name]) is not is_encrypted
        assert (CACHE_KEY in seen[name]) is not is_encrypted
        assert any(each in seen[name] for each in windows(prompt)) is not is_encrypted
    pieces = [piece for each in sent for piece in windows(each)]
    assert len(pieces) > 20
    assert any(piece in seen["kv"] for piece in pieces) is not is_encrypted
    for folder in (machines.folder / name for name in own if is_encrypted):
        key = load_pem_private_key((folder / "key.pem").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        secret = key.private_numbers().private_value.to_bytes(32, "big")
        assert not any(secret in each for each in seen.values())
    assert KEY.key is not None
    assert not any(KEY.key.secret in each for each in seen.values())


async def test_certificates_rotate_under_200_streams_without_an_error(tmp_path: Path) -> None:
    """Every one of them opens a link for its KV meanwhile."""
    machines = Machines(tmp_path / "authority")
    runs = {"p": "node", "d": "node", "e": "edge"}
    own = {name: machines.of(name, each) for name, each in runs.items()}
    oracle, num_rotated = greedy_oracle(40), 0
    room = asyncio.Semaphore(16)  # a slow machine still proves each link within its seconds

    async def rotate() -> None:
        nonlocal num_rotated
        while True:
            for name, each in runs.items():
                machines.issue(name, each)
                certificates = own[name].certificates
                assert certificates is not None
                certificates.look()
            num_rotated += 1
            await asyncio.sleep(0.05)

    async with split(tmp_path, own["p"], own["d"], own["e"]) as platform:

        async def one(number: int) -> None:
            asked = submit(request_id=str(number), sampling=Sampling(max_tokens=40),
                           cache_key=number.to_bytes(32, "big"))  # fmt: skip
            async with room:
                stream = await platform.region.generate(asked)
                ids, _, _ = await read(stream)
            assert (ids, stream.num_attempts) == (oracle, 1)

        rotating = asyncio.create_task(rotate())
        await asyncio.gather(*map(one, range(200)))
        assert not rotating.done()
        rotating.cancel()
        num_links = platform.taps["kv"].num_connections  # more where a busy machine proves late
        assert 200 <= num_links <= 200 * (1 + outgoing.RECONNECTS)
        assert platform.nodes[1].num_computed < 200 * 64, "its KV came from the other node"
    assert num_rotated >= 3
