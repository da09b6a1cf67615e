"""Blocks from device to device: the same bytes as through the host, and each page free again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.core.host_device import DeviceToyRunner, HostDevice, HostDriver, bytes_at
from tests.regions.kv.test_transfer_link import (
    BLOCK,
    COUNT,
    KEY,
    MADE,
    TOKEN,
    Cutting,
    block,
    digest,
    offer,
    server,
    until_staged,
)
from tests.regions.toy_nodes import (
    CALM,
    MODEL,
    PROMPT,
    OnlyOn,
    RunningNode,
    after_tokens,
    greedy_oracle,
    linked,
    read,
    submit,
    until,
)

from skerry_core.device_pages import FIRST_PAGE, HANDLE_BYTES, DevicePage, DevicePages
from skerry_core.page_checksums import page_checksums
from skerry_regions.address import Address
from skerry_regions.digests import full_block_digests
from skerry_regions.kv import connector as kv_connector
from skerry_regions.kv import outgoing, transfer_server
from skerry_regions.kv.carriers import LentMemory, PeerMemory
from skerry_regions.kv.frames import (
    _HEADER,
    MAGIC,
    MAX_DEVICE_BYTES,
    VERSION,
    Committed,
    DeviceMemory,
    KVFrameDecoder,
    Offer,
    Paged,
    TransferError,
    TransferRefused,
    encode,
    on_host,
)
from skerry_regions.kv.outgoing import OutgoingTransfer
from skerry_regions.kv.receiver import Arrived
from skerry_regions.region.placer import EarlierAttempts, KVFetch, Route
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.protocol import Done, Submit

pytestmark = pytest.mark.anyio


def device_pages(count: int, *, opens: bool = True) -> DevicePages:
    return DevicePages(HostDevice(HostDriver(opens=opens)), BLOCK, count)


def paged(pages: DevicePages, number: int) -> tuple[bytes, DevicePage, int]:
    """A block as an engine seals it: its name, its page and its checksum."""
    data = np.frombuffer(block(number), np.uint8)
    (page,) = pages.take(1)
    bytes_at(page.address, len(page))[...] = data
    return digest(number), page, int(page_checksums(data[None])[0])


def local(path: Path) -> Address:
    return Address(path=str(path / "kv.sock"))


# --- one transfer --------------------------------------------------------------------------------


async def test_blocks_arrive_from_page_to_page(tmp_path: Path) -> None:
    """Over a connection that is cut among them."""
    own, theirs = device_pages(COUNT), device_pages(COUNT)
    to = server(pages=own)
    relay = Cutting(await to.listen(local(tmp_path)), tmp_path, [1200])
    listening = await asyncio.start_unix_server(relay.serve, tmp_path / "relay.sock")
    arriving = to.expect(1, TOKEN, lease_seconds=60)
    sending = OutgoingTransfer(Address(path=str(tmp_path / "relay.sock")), offer(), pages=theirs)
    for i in range(COUNT):
        sending.seal(*paged(theirs, i))
    sending.finish(MADE)
    arrived = await arriving
    assert isinstance(arrived, Arrived)
    assert relay.cuts == []
    assert [type(data) for _, data in arrived.blocks] == [DevicePage] * COUNT
    assert [bytes(on_host(data)) for _, data in arrived.blocks] == [block(i) for i in range(COUNT)]
    assert len(arrived.checksums) == COUNT
    assert await sending.outcome() == Committed(1)
    assert (theirs.num_free, own.num_free) == (COUNT, 0)
    del arrived, arriving
    assert own.num_free == COUNT
    await to.close()
    await asyncio.gather(*relay.tasks)
    listening.close()


async def test_blocks_without_a_page_at_the_receiver_come_to_its_host(tmp_path: Path) -> None:
    own, theirs = device_pages(2), device_pages(COUNT)
    to = server(pages=own)
    bound = await to.listen(local(tmp_path))
    arriving = to.expect(1, TOKEN, lease_seconds=60)
    sending = OutgoingTransfer(bound, offer(), pages=theirs)
    for i in range(COUNT):
        sending.seal(*paged(theirs, i))
    sending.finish(MADE)
    arrived = await arriving
    assert isinstance(arrived, Arrived)
    kinds = [isinstance(data, DevicePage) for _, data in arrived.blocks]
    assert kinds == [True, True, False, False, False, False]
    assert [bytes(on_host(data)) for _, data in arrived.blocks] == [block(i) for i in range(COUNT)]
    await to.close()


@pytest.mark.parametrize("why", ["handle", "no device", "another build", "another host"])
async def test_where_pages_cannot_be_read_blocks_go_through_the_host(
    tmp_path: Path, why: str
) -> None:
    own, theirs = device_pages(COUNT, opens=why != "handle"), device_pages(COUNT)
    to = server(pages=None if why == "no device" else own)
    where = Address(host="127.0.0.1") if why == "another host" else local(tmp_path)
    bound = await to.listen(where, KEY)
    arriving = to.expect(1, TOKEN, lease_seconds=60, any_build=True)
    build = "another" if why == "another build" else "b"
    offered = msgspec.structs.replace(offer(), numeric_build=build)
    sending = OutgoingTransfer(bound, offered, KEY, pages=theirs)
    for i in range(COUNT):
        sending.seal(*paged(theirs, i))
    sending.finish(MADE)
    arrived = await arriving
    assert isinstance(arrived, Arrived)
    assert [type(data) for _, data in arrived.blocks] == [bytearray] * COUNT
    assert [bytes(on_host(data)) for _, data in arrived.blocks] == [block(i) for i in range(COUNT)]
    assert sending.pages is None
    assert await sending.outcome() == Committed(1)
    assert (theirs.num_free, own.num_free) == (COUNT, COUNT)
    await to.close()


Transfer = tuple[
    transfer_server.TransferServer, asyncio.Future[Arrived | None], OutgoingTransfer
]  # fmt: skip


async def staged(path: Path, own: DevicePages, theirs: DevicePages) -> Transfer:
    """A transfer whose first block was acknowledged."""
    to = server(pages=own)
    arriving = to.expect(1, TOKEN, lease_seconds=60)
    sending = OutgoingTransfer(await to.listen(local(path)), offer(), pages=theirs)
    sending.seal(*paged(theirs, 0))
    await until_staged(to)
    await until(lambda: theirs.num_free == COUNT)
    assert sending.pages is theirs
    assert own.num_free == COUNT - 1
    return to, arriving, sending


async def test_pages_are_free_after_a_lease_lapsed(tmp_path: Path) -> None:
    own, theirs = device_pages(COUNT), device_pages(COUNT)
    to, arriving, sending = await staged(tmp_path, own, theirs)
    to._settle(1, None)  # as the lease's timer does
    assert await arriving is None
    assert own.num_free == COUNT
    sending.seal(*paged(theirs, 1))
    refused = await sending.outcome()
    assert refused == TransferRefused(1, "no such transfer, or its lease lapsed")
    assert (theirs.num_free, own.num_free) == (COUNT, COUNT)
    await to.close()


async def test_pages_are_free_after_the_sender_gave_up(tmp_path: Path) -> None:
    own, theirs = device_pages(COUNT), device_pages(COUNT)
    to, arriving, sending = await staged(tmp_path, own, theirs)
    sending.cancel()
    assert await arriving is None
    assert own.num_free == COUNT
    await sending.outcome()
    sending.seal(*paged(theirs, 1))  # what its engine still makes
    assert theirs.num_free == COUNT
    await to.close()


async def test_pages_are_free_after_a_connection_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "RECONNECTS", 0)
    monkeypatch.setattr(transfer_server, "RETURN_SECONDS", 0.0)
    own, theirs = device_pages(COUNT), device_pages(COUNT)
    to, arriving, sending = await staged(tmp_path, own, theirs)
    sending._drop()
    sending.seal(*paged(theirs, 1))
    assert theirs.num_free == COUNT - 1
    assert await arriving is None
    assert isinstance(own.device, HostDevice)
    assert (own.num_free, own.device.driver.opened) == (COUNT, {})
    assert await sending.outcome() == TransferRefused(1, "the peer is gone")
    assert theirs.num_free == COUNT
    await to.close()


# --- frames --------------------------------------------------------------------------------------


def memory_of(pages: DevicePages) -> DeviceMemory:
    memory = LentMemory(None, pages).device
    assert memory is not None
    return memory


@given(
    st.integers(FIRST_PAGE, FIRST_PAGE + 2 * BLOCK) | st.integers(FIRST_PAGE, MAX_DEVICE_BYTES - 1)
)
def test_a_page_outside_of_what_was_offered_is_not_read(offset: int) -> None:
    memory, pages = PeerMemory(), device_pages(2)
    asked = Paged(1, digest(0), offset)
    with pytest.raises(TransferError, match="transfer 1 shares no device's memory"):
        memory.copied(asked)
    assert memory.open_device(memory_of(pages), pages)
    if offset <= FIRST_PAGE + BLOCK:
        assert len(memory.copied(asked).data) == BLOCK
    else:
        with pytest.raises(TransferError, match=f"transfer 1: a page at {offset} is outside"):
            memory.copied(asked)
    memory.close()
    with pytest.raises(TransferError, match="transfer 1 shares no device's memory"):
        memory.copied(asked)


def framed(body: object) -> bytes:
    data = msgspec.msgpack.encode(body)
    checksum = xxhash.xxh3_128_digest(data)
    return _HEADER.pack(MAGIC, VERSION, 1, 0, 1, bytes(16), 0, 0, len(data), checksum) + data


@given(
    st.binary(min_size=15, max_size=17),
    st.integers(-(2**63), 2**64 - 1) | st.integers(FIRST_PAGE - 1, MAX_DEVICE_BYTES),
)
def test_a_page_that_cannot_be_is_not_decoded(name: bytes, offset: int) -> None:
    told = framed({"type": "paged", "transfer": 1, "digest": name, "offset": offset})
    if len(name) == 16 and FIRST_PAGE <= offset < MAX_DEVICE_BYTES:
        assert list(KVFrameDecoder().feed(told)) == [Paged(1, name, offset)]
    else:
        with pytest.raises(TransferError, match="malformed control frame"):
            list(KVFrameDecoder().feed(told))


@given(st.integers(0, 80), st.integers(0, 20), st.integers(-(2**63), 2**64 - 1))
def test_a_memory_that_cannot_be_is_not_decoded(handle: int, mark: int, num_bytes: int) -> None:
    fields = msgspec.to_builtins(offer(), builtin_types=(bytes,))
    memory = DeviceMemory(bytes(handle), bytes(mark), num_bytes)
    told = framed({**fields, "device": memory})
    is_possible = FIRST_PAGE < num_bytes <= MAX_DEVICE_BYTES
    if (handle, mark) == (HANDLE_BYTES, 16) and is_possible:
        (frame,) = KVFrameDecoder().feed(told)
        assert isinstance(frame, Offer)
        assert frame.device == memory
    else:
        with pytest.raises(TransferError, match="malformed control frame"):
            list(KVFrameDecoder().feed(told))


@given(st.data())
def test_damaged_frames_are_an_error_or_nothing(data: st.DataObject) -> None:
    memory = DeviceMemory(bytes(HANDLE_BYTES), bytes(16), MAX_DEVICE_BYTES)
    frames = [
        msgspec.structs.replace(offer(), device=memory),
        Paged(1, digest(1), FIRST_PAGE),
    ]
    damaged = bytearray(b"".join(bytes(part) for frame in frames for part in encode(frame)))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    decoder = KVFrameDecoder()
    try:
        received = list(decoder.feed(bytes(damaged)))
    except TransferError:
        return
    assert received == frames[: len(received)]  # the damage is where nobody looks, or not yet here


# --- between nodes -------------------------------------------------------------------------------


def device_node(name: str, path: Path, *, opens: bool = True) -> RunningNode:
    device = HostDevice(HostDriver(opens=opens))
    return RunningNode(name, path, make_runner=partial(DeviceToyRunner, device))


def runner_of(node: RunningNode) -> DeviceToyRunner:
    assert isinstance(node.runner, DeviceToyRunner)
    return node.runner


@pytest.fixture
def few_pages(monkeypatch: pytest.MonkeyPatch) -> int:
    """Of each node."""
    count = 8
    monkeypatch.setattr(kv_connector, "DEVICE_BYTES", count * 1024)
    return count


def all_free(node: RunningNode, count: int) -> Callable[[], bool]:
    pages = node.node.connector(MODEL)._pages
    assert pages is not None
    return lambda: pages.num_free == count


async def test_a_prompt_is_pushed_from_device_to_device(tmp_path: Path, few_pages: int) -> None:
    nodes = prefill, decode = [device_node(name, tmp_path) for name in ("prefill", "decode")]
    async with linked(nodes, CALM) as links:

        class Split:
            def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
                yield Route(decode=links[1], prefill=links[0], kv_address=str(decode.kv_address))

        prefill.gate.hold_after(0)
        stream = await RemoteRegion(lambda: links, Split()).generate(submit())
        streams = prefill.node._served[MODEL]._streams.values()
        await until(lambda: any(s.outgoing is not None and s.outgoing.pages() for s in streams))
        decode.gate.hold_after(1)
        prefill.gate.open.set()
        ids, _ = await after_tokens(stream, 2)
        for node in nodes:  # not only when the stream has ended
            await until(all_free(node, few_pages))
        decode.gate.open.set()
        ids, _, _ = await read(stream, ids)
        assert ids == greedy_oracle(40)
        assert decode.num_computed == 39
        assert runner_of(prefill).num_exported == runner_of(decode).num_admitted == 3


class Fetching:
    """Places on the second node, which fetches from the first."""

    def __init__(self, nodes: list[RunningNode], links: list[NodeLink]) -> None:
        self._kv_address, self._links = str(nodes[1].kv_address), links

    def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
        source, target = self._links
        names = full_block_digests(b"toy", submit.cache_key, submit.prompt_ids)
        fetch = KVFetch(
            source=source, digests=list(names), kv_address=self._kv_address, lease_seconds=60.0
        )
        yield Route(decode=target, fetch=fetch)


async def fetched(nodes: list[RunningNode], links: list[NodeLink]) -> Done:
    """Have the first node compute the prompt, and the second one answer."""
    await read(await RemoteRegion(lambda: links, OnlyOn(links[0])).generate(submit()))
    stream = await RemoteRegion(lambda: links, Fetching(nodes, links)).generate(submit())
    ids, _, done = await read(stream)
    assert ids == greedy_oracle(40)
    return done


@pytest.mark.parametrize("opens", [True, False])
async def test_a_prefix_is_fetched_from_device_to_device(
    tmp_path: Path, few_pages: int, opens: bool
) -> None:
    """And through the host, where the handle cannot be opened."""
    nodes = [device_node("holder", tmp_path), device_node("server", tmp_path, opens=opens)]
    async with linked(nodes, CALM) as links:
        done = await fetched(nodes, links)
        assert done.usage.cached_tokens == len(PROMPT) // 64 * 64
        assert [runner_of(nodes[0]).num_exported, runner_of(nodes[1]).num_admitted] == (
            [2, 2] if opens else [0, 0]
        )
        for node in nodes:
            await until(all_free(node, few_pages))


async def test_a_page_that_was_spoilt_on_its_way_is_computed(
    tmp_path: Path, few_pages: int, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [device_node(name, tmp_path) for name in ("holder", "server")]
    runner_of(nodes[1]).device.spoils = 1
    async with linked(nodes, CALM) as links:
        done = await fetched(nodes, links)
        assert done.usage.cached_tokens == 0, "the first block"
        assert runner_of(nodes[1]).num_admitted == 1
    assert "1 of 1 KV blocks were spoilt between devices" in caplog.text
