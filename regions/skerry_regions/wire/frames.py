"""Frames: a message of the protocol as bytes, and back. No sockets, no clock, only a buffer.

A frame is a 4-byte big-endian length followed by that many bytes of MessagePack, one tagged struct
of `protocol`. Any split of the byte stream gives the same messages. What cannot be a message is a
`ProtocolError` that says what is wrong and where; the connection is of no use after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

MessageT = TypeVar("MessageT")

HEADER_BYTES = 4
MAX_FRAME = 1 << 20
"""Bytes of one message. The longest prompt (2^17 tokens of up to 5 bytes) takes 640 KiB of it."""


class ProtocolError(Exception):
    """The peer broke the protocol: garbage, an oversized frame, or a message out of turn.

    `offset` is the position, in bytes since the connection began, of the frame at fault.
    """

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(f"{what} (frame at byte {offset})")
        self.what = what
        self.offset = offset


class MessageTooLarge(ValueError):
    """A message of our own that no peer would accept."""


_encoder = msgspec.msgpack.Encoder()


def encode(message: Struct) -> bytes:
    """Return one frame. Raises `MessageTooLarge` beyond `MAX_FRAME`."""
    payload = _encoder.encode(message)
    if len(payload) > MAX_FRAME:
        name = type(message).__name__
        raise MessageTooLarge(f"{name} of {len(payload)} bytes; the limit is {MAX_FRAME}")
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class FrameDecoder(Generic[MessageT]):
    """Bytes of one direction in, messages out.

    Holds at most one unfinished frame, so never more than `MAX_FRAME` bytes and one `feed`.
    """

    def __init__(self, messages: Any) -> None:
        """`messages` is the union of the structs that may come: the type checker cannot say it."""
        self._decoder = msgspec.msgpack.Decoder(messages)
        self._buffer = bytearray()
        self._offset = 0  # of the buffer's first byte in the stream
        self.frame_offset = 0  # in the stream, of the frame that was decoded last

    @property
    def buffered(self) -> int:
        """Return bytes held back because their frame is not complete."""
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> Iterator[MessageT]:
        """Return messages completed by `data`, in order. Raises `ProtocolError` after the last good
        one.

        Iterate to the end before the next call.
        """
        self._buffer += data
        return self._messages()

    def _messages(self) -> Iterator[MessageT]:
        start = 0
        try:
            while (end := self._frame_end(start)) is not None:
                frame = self._buffer[start + HEADER_BYTES : end]
                self.frame_offset = self._offset + start
                start = end
                yield self._decode(frame)
        finally:
            del self._buffer[:start]
            self._offset += start

    def _frame_end(self, start: int) -> int | None:
        """Return where the frame at `start` ends in the buffer; None while it is not complete."""
        if len(self._buffer) < start + HEADER_BYTES:
            return None
        size = int.from_bytes(self._buffer[start : start + HEADER_BYTES], "big")
        if size > MAX_FRAME:  # corrupt or hostile: do not wait for it
            self.frame_offset = self._offset + start
            raise ProtocolError(
                f"a frame of {size} bytes; the limit is {MAX_FRAME}", self.frame_offset
            )
        end = start + HEADER_BYTES + size
        return end if end <= len(self._buffer) else None

    def _decode(self, frame: bytearray) -> MessageT:
        try:
            return cast(MessageT, self._decoder.decode(frame))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"not a message: {error}", self.frame_offset) from None
