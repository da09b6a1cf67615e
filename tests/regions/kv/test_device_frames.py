"""Pages in frames: none outside of what was offered, and damage is an error or nothing."""

from __future__ import annotations

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.regions.kv.device_blocks import device_pages
from tests.regions.kv.links import BLOCK, digest, offer

from skerry_core.device_pages import FIRST_PAGE, HANDLE_BYTES, DevicePages
from skerry_regions.kv.carriers import LentMemory, PeerMemory
from skerry_regions.kv.frames import (
    _HEADER,
    MAGIC,
    MAX_DEVICE_BYTES,
    VERSION,
    DeviceMemory,
    KVFrameDecoder,
    Offer,
    Paged,
    TransferError,
    encode,
)

pytestmark = pytest.mark.anyio


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
