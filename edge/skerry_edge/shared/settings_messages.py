"""Messages of the stream of settings: a token's record, a file of a home.

token.ID  ──▶ a token's record: digests, no secret; an empty message: it was revoked
file.NAME ──▶ a file of the home, such as `limits`; an empty message: there is none
"""

from __future__ import annotations

import zlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from skerry_edge.gate.token_file import TokenRecord
from skerry_regions.drivers.jetstream.stream import Write
from skerry_regions.drivers.jetstream.tables import DAY_SECONDS, SETTINGS

REVOKED_SECONDS = 30 * DAY_SECONDS  # that the servers say of a token that it was revoked
MAX_VALUE_BYTES = 4 << 20  # of a file
TOKEN, FILE = "token", "file"  # the first parts of keys


class TokenMessage(Struct, frozen=True, array_like=True):
    """What lies under a token's key."""

    version: Literal[1]
    token: TokenRecord


class FileMessage(Struct, frozen=True, array_like=True):
    """What lies under a file's key."""

    version: Literal[1]
    data: Annotated[bytes, Meta(max_length=SETTINGS.max_message_bytes)]  # deflated


def token_write(id: str, record: TokenRecord | None, expected: int) -> Write:
    """Return the write of a token, or that it was revoked; `expected` is the sequence known."""
    key = f"{TOKEN}.{id}"
    if record is None:
        return Write(key, b"", expected, int(REVOKED_SECONDS))
    return Write(key, msgspec.json.encode(TokenMessage(1, record)), expected)


def file_write(name: str, content: bytes | None, expected: int) -> Write:
    """Return the write of a file, or that there is none. Raises ValueError for one too large."""
    if content is None:
        return Write(f"{FILE}.{name}", b"", expected)
    data = zlib.compress(content)
    if len(content) > MAX_VALUE_BYTES or len(data) > SETTINGS.max_message_bytes - 1024:
        raise ValueError("it is too large for NATS: 4 MiB, or 799 KiB deflated, at most")
    return Write(f"{FILE}.{name}", msgspec.msgpack.encode(FileMessage(1, data)), expected)


def token_in(data: bytes) -> TokenRecord | None:
    """Return the token of a message; None of one that was revoked. Raises msgspec.MsgspecError."""
    return _decode_token(data).token if data else None


def file_in(data: bytes) -> bytes | None:
    """Return the content of a file; None where there is none. Raises ValueError."""
    if not data:
        return None
    inflating = zlib.decompressobj()
    content = inflating.decompress(_decode_file(data).data, MAX_VALUE_BYTES + 1)
    if not inflating.eof:
        raise ValueError("it is larger than a file may be")
    return content


_decode_token = msgspec.json.Decoder(TokenMessage).decode
_decode_file = msgspec.msgpack.Decoder(FileMessage).decode
