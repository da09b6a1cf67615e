"""Blocks from device to device: the same bytes as through the host, and each page free again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.core.host_device import HostDevice, bytes_at
from tests.regions.kv.device_blocks import device_pages
from tests.regions.kv.links import COUNT, MADE, TOKEN, block, digest, offer, outcome, server
from tests.regions.kv.test_transfer_link import KEY, Cutting, until_staged
from tests.regions.toy_nodes import (
    until,
)

from skerry_core.device_pages import DevicePage, DevicePages
from skerry_core.page_checksums import page_checksums
from skerry_regions.address import Address
from skerry_regions.kv import outgoing, transfer_server
from skerry_regions.kv.frames import (
    Committed,
    TransferRefused,
    on_host,
)
from skerry_regions.kv.outgoing import OutgoingTransfer
from skerry_regions.kv.receiver import Arrived

pytestmark = pytest.mark.anyio


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
    assert await outcome(sending) == Committed(1)
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
    assert await outcome(sending) == Committed(1)
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
    refused = await outcome(sending)
    assert refused == TransferRefused(1, "no such transfer, or its lease lapsed")
    assert (theirs.num_free, own.num_free) == (COUNT, COUNT)
    await to.close()


async def test_pages_are_free_after_the_sender_gave_up(tmp_path: Path) -> None:
    own, theirs = device_pages(COUNT), device_pages(COUNT)
    to, arriving, sending = await staged(tmp_path, own, theirs)
    sending.cancel()
    assert await arriving is None
    assert own.num_free == COUNT
    await outcome(sending)
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
    assert await outcome(sending) == TransferRefused(1, "the peer is gone")
    assert theirs.num_free == COUNT
    await to.close()
