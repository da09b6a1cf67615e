"""Blocks through shared memory: the same bytes as through a socket, and never anybody else's."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from pathlib import Path

import msgspec
import pytest
import xxhash
from tests.regions.kv.links import BLOCK, COUNT, MADE, TOKEN, block, digest, offer, outcome, server
from tests.regions.kv.test_transfer_link import KEY, Cutting

from skerry_regions.address import Address
from skerry_regions.kv.carriers import LentMemory, PeerMemory
from skerry_regions.kv.frames import Ack, Need, Placed, Segment, TransferError, on_host
from skerry_regions.kv.outgoing import OutgoingTransfer
from skerry_regions.kv.receiver import Arrived
from skerry_regions.kv.shared_slots import SharedMemory, SharedSlots, SharedView

pytestmark = pytest.mark.anyio


def segment(number: int) -> Segment:
    return Segment(1, digest(number), 0, 4, block(number))


def placed_by(slots: SharedSlots, number: int) -> Placed:
    lent = LentMemory(slots)
    lent.receive(Need(1, [0], BLOCK, shared=True))
    placed = lent.place(segment(number))
    assert isinstance(placed, Placed)
    return placed


def test_what_was_put_is_read_until_it_is_freed() -> None:
    slots = SharedSlots(BLOCK, 3)
    view = SharedView(slots.where)
    offsets = [slots.put(block(number)) for number in range(3)]
    assert slots.put(block(3)) is None
    for number, offset in enumerate(offsets):
        assert offset is not None
        assert view.copy(offset, BLOCK) == block(number)
        slots.free(offset)
    assert slots.num_free == 3
    assert slots.put(block(4)) == offsets[2]  # the last one freed
    slots.close()
    slots.close()
    assert slots.put(block(5)) is None
    view.close()


def test_a_file_that_could_shrink_is_not_read() -> None:
    file = os.memfd_create("test")
    os.ftruncate(file, 1 << 20)
    where = SharedMemory(f"/proc/{os.getpid()}/fd/{file}", bytes(16), 1 << 20)
    with pytest.raises(OSError, match="is not sealed"):
        SharedView(where)
    os.close(file)


def test_another_file_of_that_name_is_not_read() -> None:
    slots = SharedSlots(BLOCK, 1)
    with pytest.raises(OSError, match="is another file here"):
        SharedView(msgspec.structs.replace(slots.where, mark=secrets.token_bytes(16)))
    with pytest.raises(OSError, match="mmap length is greater than file size"):
        SharedView(msgspec.structs.replace(slots.where, num_bytes=1 << 28))
    slots.close()
    with pytest.raises(FileNotFoundError):
        SharedView(slots.where)


def test_a_pipe_does_not_keep_the_reader_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="Invalid argument"):
        SharedView(SharedMemory(str(tmp_path / "pipe"), bytes(16), 1 << 20))


def test_nothing_outside_of_the_memory_is_read() -> None:
    slots = SharedSlots(BLOCK, 1)
    memory = PeerMemory()
    assert memory.open(slots.where)
    placed = placed_by(slots, 0)
    assert memory.segment(placed) == segment(0)
    for offset, size in [(slots.where.num_bytes - 5, 6), (slots.where.num_bytes + 1, 0)]:
        bad = msgspec.structs.replace(placed, offset=offset, num_bytes=size)
        with pytest.raises(TransferError, match="outside of the shared memory"):
            memory.segment(bad)
    memory.close()
    with pytest.raises(TransferError, match="transfer 1 shares no memory"):
        memory.segment(placed)


def test_a_slot_that_was_used_again_is_noticed() -> None:
    slots = SharedSlots(BLOCK, 1)
    memory = PeerMemory()
    memory.open(slots.where)
    placed = placed_by(slots, 0)
    slots.free(placed.offset)
    slots.put(block(1))
    with pytest.raises(TransferError, match="checksum mismatch in transfer 1"):
        memory.segment(placed)


def test_without_a_free_slot_or_a_peer_that_reads_the_segment_itself_is_sent() -> None:
    slots = SharedSlots(BLOCK, 1)
    lent = LentMemory(slots)
    assert lent.place(segment(0)) == segment(0)
    lent.receive(Need(1, [0], BLOCK))
    assert lent.place(segment(0)) == segment(0)
    lent.receive(Need(1, [0, 1], BLOCK, shared=True))
    first = lent.place(segment(0))
    assert isinstance(first, Placed)
    assert first.checksum == xxhash.xxh3_128_digest(block(0))
    assert lent.place(segment(1)) == segment(1)
    lent.receive(Ack(1, digest(0)))
    assert isinstance(lent.place(segment(1)), Placed)
    lent.release()
    lent.release()
    assert slots.num_free == 1
    assert LentMemory(None).shared is None


async def test_blocks_arrive_through_shared_memory(tmp_path: Path) -> None:
    """More blocks than slots; those that find none go through the socket."""
    to, slots = server(), SharedSlots(BLOCK, 2)
    bound = await to.listen(Address(path=str(tmp_path / "kv.sock")))
    relay = Cutting(bound, tmp_path, [BLOCK // 2])  # cut in the first segment that is a frame
    listening = await asyncio.start_unix_server(relay.serve, tmp_path / "relay.sock")
    arriving = to.expect(1, TOKEN, lease_seconds=60)
    sending = OutgoingTransfer(Address(path=str(tmp_path / "relay.sock")), offer(), slots=slots)
    for i in random.Random(1).sample(range(COUNT), COUNT):
        sending.seal(digest(i), block(i))
        await asyncio.sleep(0)
    sending.finish(MADE)
    arrived = await arriving
    assert isinstance(arrived, Arrived)
    assert [bytes(on_host(b)) for _, b in arrived.blocks] == [block(i) for i in range(COUNT)]
    await outcome(sending)
    assert slots.num_free == 2
    await to.close()
    await asyncio.gather(*relay.tasks)
    listening.close()
    slots.close()


async def test_memory_is_not_offered_to_another_host() -> None:
    to, slots = server(), SharedSlots(BLOCK, 2)
    bound = await to.listen(Address(host="127.0.0.1"), KEY)
    arriving = to.expect(1, TOKEN, lease_seconds=60)
    sending = OutgoingTransfer(bound, offer(), KEY, slots=slots)
    slots.close()  # nobody may look at it
    for i in range(COUNT):
        sending.seal(digest(i), block(i))
    sending.finish(MADE)
    assert isinstance(await arriving, Arrived)
    await to.close()


async def test_memory_that_another_host_names_is_not_opened() -> None:
    to, slots = server(), SharedSlots(BLOCK, 2)
    bound = await to.listen(Address(host="127.0.0.1"), KEY)
    arriving = to.expect(1, TOKEN, lease_seconds=60)
    named = msgspec.structs.replace(offer(), shared=slots.where)
    sending = OutgoingTransfer(bound, offer(), KEY)
    sending._sender.offer = named  # what no sender of ours says over TCP
    sending.seal(digest(0), block(0))
    while not to.receiver.staged_bytes:  # noqa: ASYNC110  (nobody is told of it)
        await asyncio.sleep(0)
    (link,) = to._links
    assert not link.memory.open(None)
    assert link.memory._view is None
    arriving.cancel()
    sending.cancel()
    await to.close()
    slots.close()
