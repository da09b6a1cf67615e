"""How a segment's bytes travel: in its frame, or beside it in memory that both ends share.

What the two ends agree on, and when, is `transfer`'s; a segment is the same whichever way it came.
"""

from __future__ import annotations

from contextlib import suppress

import xxhash

from skerry_regions.shared_slots import SharedMemory, SharedSlots, SharedView
from skerry_regions.transfer_frames import Ack, Digest, Need, Placed, Segment, TransferError


class Placing:
    """A sender's: the slots that one transfer holds. Without any, each segment is its own frame."""

    def __init__(self, slots: SharedSlots | None) -> None:
        self._slots = slots
        self._held: dict[Digest, int] = {}
        self._is_shared = False

    @property
    def memory(self) -> SharedMemory | None:
        """What to offer."""
        return None if self._slots is None else self._slots.where

    def receive(self, answer: Need | Ack) -> None:
        """Learn from the peer whether it can read the slots, and which it has read."""
        if isinstance(answer, Need):
            self._is_shared = answer.shared
        elif (
            self._slots is not None and (offset := self._held.pop(answer.digest, None)) is not None
        ):
            self._slots.free(offset)

    def placed(self, segment: Segment) -> Placed | Segment:
        """What to send: the segment itself where no slot can be had."""
        slots, size = self._slots, len(segment.payload)
        if not self._is_shared or slots is None or size != slots.slot_bytes:
            return segment
        offset = slots.put(segment.payload)
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
            checksum=xxhash.xxh3_128_digest(segment.payload),
        )

    def release(self) -> None:
        """The connection is lost, or the transfer over: nobody reads the slots any more.

        A peer that still does gets bytes which its checksum does not allow.
        """
        self._is_shared = False
        for offset in self._held.values():
            if self._slots is not None:
                self._slots.free(offset)
        self._held.clear()


class Placements:
    """A receiver's: the slots of the sender at the other end of one connection."""

    def __init__(self) -> None:
        self._view: SharedView | None = None

    def open(self, memory: SharedMemory | None) -> bool:
        """Whether what was offered can be read here. One sender has one memory."""
        if memory is None:
            return False
        self.close()
        with suppress(OSError):
            self._view = SharedView(memory)
        return self._view is not None

    def segment(self, placed: Placed) -> Segment:
        """What was placed, copied out and checked. Raises TransferError."""
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

    def close(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None
