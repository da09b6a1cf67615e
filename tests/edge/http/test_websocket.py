"""WebSocket's frames out of hostile hands, compared with how another implementation reads them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message
from tests.edge.http.websocket_peer import (
    Read,
    alike,
    frame,
    messages_of,
    read_by_another,
)

from skerry.errors import RateLimited, SkerryError
from skerry_edge.http.websocket import MAX_EMPTY, WebSocket
from skerry_edge.limits import Limits

TEXT, BINARY, GO_ON, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10
SMALL = Limits(body_bytes=1000, linger_seconds=0.05)

payloads = st.one_of(
    st.binary(max_size=8),
    st.text(max_size=8).map(str.encode),
    st.sampled_from([b"", b"\xff", b"\xc3", b"\xa9", b"\x03\xe8", b"\x03\xe8ok", b"x" * 126]),
)
frames = st.builds(
    frame,
    st.sampled_from([TEXT, BINARY, GO_ON, CLOSE, PING, PONG, 3, 11]),
    payloads,
    fin=st.sampled_from([True, True, False]),
    rsv=st.sampled_from([0, 0, 0, 0, 4, 1]),
    masked=st.sampled_from([True, True, True, True, False]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(frames, max_size=8), st.integers(1, 40))
def test_frames_are_read_as_another_implementation_reads_them(sent: list[bytes], size: int) -> None:
    stream = b"".join(sent)
    ours = asyncio.run(messages_of([stream[i : i + size] for i in range(0, len(stream), size)]))
    assert alike(ours) == alike(read_by_another(stream))
    assert ours == asyncio.run(messages_of([stream]))


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (frame(TEXT, b"a", fin=False) + frame(PING, b"p") + frame(GO_ON, b"b"), ([b"ab"], 1006)),
        (frame(TEXT, b"\xff"), ([], 1007)),
        (frame(TEXT, b"a", masked=False), ([], 1002)),
        (frame(TEXT, b"a", rsv=4), ([], 1002)),  # compressed, which was not agreed on
        (frame(GO_ON, b"a"), ([], 1002)),
        (frame(PING, b"p" * 126), ([], 1002)),
        (frame(PING, b"p", fin=False), ([], 1002)),
        (frame(BINARY, b"a"), ([], 1003)),
        (frame(CLOSE, b"\x03\xe8") + frame(TEXT, b"late"), ([], 1000)),
        (frame(CLOSE, b""), ([], 1005)),
        (frame(CLOSE, b"\x03"), ([], 1002)),
        (frame(CLOSE, struct.pack("!H", 1005)), ([], 1002)),
        (frame(3, b"a"), ([], 1002)),
        (b"\x81\xff" + b"\xff" * 8 + b"mask", ([], 1002)),  # 2^64 bytes to come
        (frame(TEXT, b"x" * 1001), ([], 1009)),
        (frame(TEXT, b"x" * 600, fin=False) + frame(GO_ON, b"x" * 600), ([], 1009)),
        (b"\x81\xff" + struct.pack("!Q", 1 << 40) + b"mask" + b"x" * 1001, ([], 1009)),
        (frame(PING, b"") * (MAX_EMPTY + 1), ([], 1008)),
        (frame(TEXT, b"", fin=False) + frame(GO_ON, b"", fin=False) * MAX_EMPTY, ([], 1008)),
        (frame(PING, b"") * MAX_EMPTY + frame(TEXT, b"a") + frame(PONG, b""), ([b"a"], 1006)),
    ],
)
def test_frames_that_cannot_be_and_what_they_get(stream: bytes, expected: Read) -> None:
    assert asyncio.run(messages_of([stream], SMALL)) == expected
    assert asyncio.run(messages_of([stream[:3], stream[3:]], SMALL)) == expected


def test_pings_get_pongs_and_closes_an_echo() -> None:
    sent = bytearray()
    stream = frame(PING, b"abc") + frame(CLOSE, b"\x03\xe8bye")
    asyncio.run(messages_of([stream], sent=sent))
    assert bytes(sent) == b"\x8a\x03abc" + b"\x88\x05\x03\xe8bye"


def test_a_message_without_room_is_dropped_and_told() -> None:
    held: list[int] = []

    def hold(size: int) -> None:
        held.append(size)
        if sum(held) > 6:
            held.pop()
            raise RateLimited("No room.")

    async def read() -> list[bytes | SkerryError]:
        stream = [frame(TEXT, b"abcd", fin=False), frame(GO_ON, b"efgh"), frame(TEXT, b"xyz")]
        return await _all(WebSocket(_receiver(stream), _dropped, Limits(), hold=hold, finish=_no))

    refused, message = asyncio.run(read())
    assert isinstance(refused, RateLimited)
    assert message == b"xyz"
    assert held == [4, -4, 3]


def test_a_silent_client_is_pinged_and_given_up() -> None:
    limits, sent = Limits(ping_seconds=0.05), bytearray()

    async def silent() -> Message:
        await asyncio.sleep(60)
        raise AssertionError("never")

    async def read() -> tuple[list[Any], int]:
        async def send(message: Message) -> None:
            sent.extend(message["body"])

        peer = WebSocket(silent, send, limits, hold=_no, finish=_no)
        return await _all(peer), peer.code

    assert asyncio.run(read()) == ([], 1006)
    assert bytes(sent) == b"\x89\x00"


def test_a_client_that_reads_nothing_is_not_waited_for() -> None:
    async def stuck(message: Message) -> None:
        await asyncio.sleep(60)

    async def run() -> None:
        gone = asyncio.Event()

        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        peer = WebSocket(receive, stuck, Limits(), hold=_no, finish=_no)
        reading = asyncio.create_task(_all(peer))
        await asyncio.sleep(0)
        await asyncio.wait_for(peer.close(1008, "No more."), 30)
        assert await asyncio.wait_for(reading, 30) == []
        await asyncio.wait_for(peer.end(), 30)

    asyncio.run(run())


def test_a_client_that_does_not_agree_to_close_is_not_waited_for_either() -> None:
    async def run() -> None:
        chatter = frame(TEXT, b"more")

        async def receive() -> Message:
            await asyncio.sleep(0.01)
            return {"type": "http.request", "body": chatter, "more_body": True}

        peer = WebSocket(receive, _dropped, SMALL, hold=_no, finish=_no)
        reading = asyncio.create_task(_all(peer))
        await asyncio.sleep(0.05)
        await peer.close(1012, "Later.")
        assert set(await asyncio.wait_for(reading, 30)) == {b"more"}

    asyncio.run(run())


def _no(*_: object) -> None:
    """Nothing."""


async def _dropped(message: Message) -> None:
    """Nothing."""


def _receiver(stream: Iterable[bytes]) -> Any:
    pieces = iter(stream)

    async def receive() -> Message:
        for piece in pieces:
            return {"type": "http.request", "body": piece, "more_body": True}
        return {"type": "http.disconnect"}

    return receive


async def _all(peer: WebSocket) -> list[bytes | SkerryError]:
    return [message async for message in peer.messages()]
