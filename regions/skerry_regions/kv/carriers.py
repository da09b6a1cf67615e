"""How a block's bytes travel: in a frame, or beside it in memory that both ends can read.

On one host that is shared memory, or, between engines whose KV is on devices, memory of the
sender's device. What the two ends agree on, and when, is `transfer`'s; a block is the same
whichever way it came.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import xxhash

from skerry_core.device_pages import DevicePage, DevicePages, PeerPages
from skerry_regions.kv.frames import (
    Ack,
    Copied,
    DeviceMemory,
    Digest,
    Need,
    Paged,
    Placed,
    Segment,
    TransferError,
    on_host,
)
from skerry_regions.kv.shared_slots import SharedMemory, SharedSlots, SharedView


class LentMemory:
    """Of a sender: the slots that one transfer holds, and where its blocks may stay on the device.

    Without either, each segment is its own frame.
    """

    def __init__(self, slots: SharedSlots | None, pages: DevicePages | None = None) -> None:
        self._slots = slots
        self._held: dict[Digest, int] = {}
        self._is_shared = False
        self._pages = pages
        self._are_pages_read = False

    @property
    def shared(self) -> SharedMemory | None:
        """Return memory of the host to offer."""
        return None if self._slots is None else self._slots.where

    @property
    def device(self) -> DeviceMemory | None:
        """Return memory of the device to offer."""
        pages = self._pages
        return None if pages is None else DeviceMemory(pages.handle, pages.mark, pages.num_bytes)

    @property
    def pages(self) -> DevicePages | None:
        """Return the pages that the peer has said it can read. From any thread."""
        return self._pages if self._are_pages_read else None

    def receive(self, answer: Need | Ack) -> None:
        """Learn from the peer what it can read, and which slots it has read."""
        if isinstance(answer, Need):
            self._is_shared = answer.shared
            self._are_pages_read = answer.device
        elif (
            self._slots is not None and (offset := self._held.pop(answer.digest, None)) is not None
        ):
            self._slots.free(offset)

    def place(self, segment: Segment) -> Placed | Paged | Segment:
        """Return the frame to send: the segment itself where no slot can be had.

        A page needs none; the sender holds it until it is acknowledged.
        """
        if isinstance(segment.payload, DevicePage) and self.pages is not None:
            return Paged(segment.transfer, segment.digest, segment.payload.offset)
        payload = on_host(segment.payload)
        segment = replace(segment, payload=payload)
        slots, size = self._slots, len(payload)
        if not self._is_shared or slots is None or size != slots.slot_bytes:
            return segment
        offset = slots.put(payload)
        if offset is None:
            return segment
        self._held[segment.digest] = offset
        return Placed(
            transfer=segment.transfer,
            digest=segment.digest,
            first_layer=segment.first_layer,
            num_layers=segment.num_layers,
            offset=offset,
            num_bytes=size,
            checksum=xxhash.xxh3_128_digest(payload),
        )

    def release(self) -> None:
        """Free the slots: the connection is lost, or the transfer over.

        A peer that still does gets bytes which its checksum does not allow.
        """
        self._is_shared = self._are_pages_read = False
        for offset in self._held.values():
            if self._slots is not None:
                self._slots.free(offset)
        self._held.clear()


class PeerMemory:
    """Of a receiver: the memory of the sender at the other end of one connection."""

    def __init__(self) -> None:
        self._view: SharedView | None = None
        self._peer: PeerPages | None = None

    def open(self, memory: SharedMemory | None) -> bool:
        """Return whether what was offered can be read here. One sender has one memory."""
        if memory is None:
            return False
        self._close_view()
        with suppress(OSError):
            self._view = SharedView(memory)
        return self._view is not None

    def open_device(self, memory: DeviceMemory, own: DevicePages | None) -> bool:
        """Open as `open` does; what is read goes to pages of one's own."""
        self._close_peer()
        if own is not None:
            with suppress(OSError):
                self._peer = PeerPages(own, memory.handle, memory.mark, memory.num_bytes)
        return self._peer is not None

    def segment(self, placed: Placed) -> Segment:
        """Return what was placed, copied out and checked. Raises TransferError."""
        if self._view is None:
            raise TransferError(f"transfer {placed.transfer} shares no memory")
        try:
            payload = self._view.copy(placed.offset, placed.num_bytes)
        except ValueError as error:
            raise TransferError(f"transfer {placed.transfer}: {error}") from None
        if xxhash.xxh3_128_digest(payload) != placed.checksum:
            raise TransferError(f"checksum mismatch in transfer {placed.transfer}")
        return Segment(
            placed.transfer, placed.digest, placed.first_layer, placed.num_layers, payload
        )

    def copied(self, paged: Paged) -> Copied:
        """Return what is in a page, copied and not yet checked: that is done where it is adopted.

        Raises TransferError.
        """
        if self._peer is None:
            raise TransferError(f"transfer {paged.transfer} shares no device's memory")
        try:
            return Copied(paged.transfer, paged.digest, self._peer.copy(paged.offset))
        except (ValueError, OSError) as error:
            raise TransferError(f"transfer {paged.transfer}: {error}") from None

    def close(self) -> None:
        self._close_view()
        self._close_peer()

    def _close_view(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None

    def _close_peer(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
