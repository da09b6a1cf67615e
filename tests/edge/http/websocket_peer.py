"""WebSocket streams as clients may send them, our reading of them, and another implementation's."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from starlette.types import Message
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol as Peer
from websockets.protocol import Side

from skerry_edge.http.websocket import WebSocket
from skerry_edge.limits import Limits

Read = tuple[list[bytes], int]  # messages, and the code with which the connection was closed

ABNORMAL, UNSUPPORTED = 1006, 1003
MASK = b"\x11\x22\x33\x44"


def frame(
    opcode: int, payload: bytes, *, fin: bool = True, rsv: int = 0, masked: bool = True
) -> bytes:
    """Return a frame as RFC 6455 (5.2) draws it."""
    size = len(payload)
    bit = 0x80 if masked else 0
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    if size < 126:
        head += bytes([bit | size])
    elif size < 1 << 16:
        head += bytes([bit | 126]) + struct.pack("!H", size)
    else:
        head += bytes([bit | 127]) + struct.pack("!Q", size)
    if not masked:
        return head + payload
    return head + MASK + bytes(each ^ MASK[i % 4] for i, each in enumerate(payload))


async def messages_of(
    pieces: Iterable[bytes], limits: Limits | None = None, sent: bytearray | None = None
) -> Read:
    """Read a stream that comes in pieces; what is written goes to `sent`."""
    coming = iter(pieces)

    async def receive() -> Message:
        for piece in coming:
            return {"type": "http.request", "body": piece, "more_body": True}
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if sent is not None:
            sent.extend(message["body"])

    def nothing(*_: object) -> None:
        """There is room."""

    peer = WebSocket(receive, send, limits or Limits(), hold=nothing, finish=nothing)
    read: list[bytes] = []
    async for message in peer.messages():
        assert isinstance(message, bytes)
        read.append(message)
    return read, int(peer.code)


def read_by_another(stream: bytes) -> Read:
    """Read it with the package `websockets`, whose frames are put together here."""
    peer = Peer(Side.SERVER, max_size=None)
    peer.receive_data(stream)
    read: list[bytes] = []
    message, opcode = b"", Opcode.TEXT
    for event in peer.events_received():
        assert isinstance(event, Frame)
        if event.opcode in (Opcode.PING, Opcode.PONG):
            continue
        if event.opcode is Opcode.CLOSE:
            break
        if event.opcode is not Opcode.CONT:
            message, opcode = b"", event.opcode
        if opcode is Opcode.BINARY:
            return read, UNSUPPORTED  # of ours: only texts are read
        message += bytes(event.data)
        if not _is_text(message, whole=event.fin):
            return read, 1007
        if event.fin:
            read.append(message)
    if peer.close_sent is not None and peer.close_rcvd is None:
        return read, peer.close_sent.code
    return read, ABNORMAL if peer.close_rcvd is None else peer.close_rcvd.code


def alike(read: Read) -> Read:
    """Return it with one code for both kinds of nonsense: a frame may be two of them."""
    messages, code = read
    return messages, 1002 if code == 1007 else int(code)


def _is_text(message: bytes, *, whole: bool) -> bool:
    try:
        message.decode()
    except UnicodeDecodeError as error:
        return not whole and error.reason == "unexpected end of data"
    return True
