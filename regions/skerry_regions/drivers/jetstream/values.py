"""Values that may be larger than a message: their pieces first, then a head, without which they are
not there.

A head has the digest of what it stands for. So a value whose pieces are not all there, or not all
of the same one, is none, as is one that the servers' disks damaged.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from skerry_regions.drivers.jetstream.stream import KeyedStream, Stored, Write

PIECE_BYTES = 256 << 10  # servers take messages of up to 1 MiB unless configured otherwise
AT_ONCE = 8  # requests that are under way
VERSION = 1

T = TypeVar("T")
ResultT = TypeVar("ResultT")


class ValueHead(Struct, frozen=True, array_like=True):
    """What lies under a value's key."""

    version: int
    size: int
    digest: bytes
    data: bytes  # the value, unless it is in pieces


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(ValueHead)


def pieces_of(key: str, value: bytes) -> list[Write]:
    """Return the writes of a value's pieces; none of one that its head holds."""
    if len(value) <= PIECE_BYTES:
        return []
    return [
        Write(f"{key}.{start // PIECE_BYTES}", value[start : start + PIECE_BYTES])
        for start in range(0, len(value), PIECE_BYTES)
    ]


def head_of(key: str, value: bytes, expected: int | None = None) -> Write:
    """Return the write that makes a value known, whose pieces are there by then."""
    data = value if len(value) <= PIECE_BYTES else b""
    return Write(key, _encode(ValueHead(VERSION, len(value), _digest(value), data)), expected)


async def write_value(stream: KeyedStream, key: str, value: bytes, *, seconds: float) -> None:
    """Keep a value, for which its pieces have `seconds` each. Raises `Unavailable`."""
    await each_of(pieces_of(key, value), lambda piece: stream.write(piece, seconds=seconds))
    await stream.write(head_of(key, value), seconds=seconds)


async def read_value(stream: KeyedStream, key: str) -> bytes | None:
    """Return a value; None where there is none that is whole. Raises `Unavailable`."""
    stored = await stream.get(key)
    return None if stored is None else await value_in(stream, stored)


async def value_in(stream: KeyedStream, stored: Stored) -> bytes | None:
    """Return the value of a head; None where not all of it is there, or it is damaged."""
    try:
        head = _decoder.decode(stored.data)
    except msgspec.MsgspecError:
        return None
    value = head.data
    if head.size > PIECE_BYTES:
        keys = [f"{stored.key}.{number}" for number in range(-(-head.size // PIECE_BYTES))]
        pieces = await each_of(keys, stream.get)
        value = b"".join(b"" if piece is None else piece.data for piece in pieces)
    return value if _digest(value) == head.digest else None


async def each_of(
    arguments: Sequence[T], call: Callable[[T], Coroutine[Any, Any, ResultT]]
) -> list[ResultT]:
    """Return what a call gives for each argument, of which some are under way at once. The first
    failure ends the others."""
    results: dict[int, ResultT] = {}
    waiting = enumerate(arguments)

    async def work(waiting: Iterable[tuple[int, T]]) -> None:
        for number, argument in waiting:
            results[number] = await call(argument)

    workers = [asyncio.create_task(work(waiting)) for _ in range(min(AT_ONCE, len(arguments)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
    return [results[number] for number in range(len(arguments))]


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()
