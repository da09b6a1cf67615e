"""Frames of KV transfers, and their bytes; `receiver` has the rules.

Every length is bounded before memory is touched, and every frame carries its checksum (xxh3-128).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import msgspec
import xxhash
from msgspec import Meta, Struct, field

from skerry_core.config import KVDtype
from skerry_core.device_pages import FIRST_PAGE, HANDLE_BYTES, MARK_BYTES, DevicePage
from skerry_regions.digests import DIGEST_SIZE
from skerry_regions.kv.shared_slots import MAX_SHARED_BYTES, Buffer, SharedMemory
from skerry_regions.registry import NumericBuild
from skerry_regions.trace_context import TraceContext
from skerry_regions.wire.protocol import BlockName

MAGIC = b"SKKV"
VERSION = 1
MAX_CONTROL_BYTES = 1 << 20  # an Offer of 64k digests
MAX_SEGMENT_BYTES = 64 << 20  # a block of the largest model we know, with room
MAX_BLOCKS = 1 << 16  # 4 million tokens
MAX_DEVICE_BYTES = 1 << 30  # of the pages of one sender

# magic, version, kind, reserved, transfer, digest, first layer, layers, payload bytes, checksum
_HEADER = struct.Struct("<4sBBHQ16sHHI16s")
_CONTROL, _SEGMENT = 1, 2

Digest = bytes
Payload = Buffer | DevicePage
DTYPE_BYTES: dict[KVDtype, int] = {"float16": 2, "bfloat16": 2, "float32": 4}


class TransferError(Exception):
    """The peer broke the protocol, or its bytes are damaged; the message says what and where."""


class DeviceMemory(Struct, frozen=True):
    """A sender's pages on a device: see `device_pages`."""

    handle: Annotated[bytes, Meta(min_length=HANDLE_BYTES, max_length=HANDLE_BYTES)]
    mark: Annotated[bytes, Meta(min_length=MARK_BYTES, max_length=MARK_BYTES)]
    num_bytes: Annotated[int, Meta(gt=FIRST_PAGE, le=MAX_DEVICE_BYTES)]


class Offer(Struct, frozen=True, tag="offer"):
    """The blocks a request needs, in order; `tail_tokens` counts those of a last, open block."""

    transfer: int
    token: bytes
    request_id: Annotated[str, Meta(max_length=128)]
    epoch: int
    numeric_build: NumericBuild
    kv_dtype: KVDtype
    block_bytes: Annotated[int, Meta(ge=1, le=MAX_SEGMENT_BYTES)]
    num_layers: Annotated[int, Meta(ge=1, le=1 << 12)]
    digests: Annotated[list[bytes], Meta(max_length=MAX_BLOCKS)]
    tail_tokens: Annotated[int, Meta(ge=0, lt=64)] = 0
    trace: TraceContext | None = None  # the span that it is part of
    shared: SharedMemory | None = None  # blocks may be placed there, if the peer can read it
    device: DeviceMemory | None = None  # likewise, on a device


class Need(Struct, frozen=True, tag="need"):
    """Indices into the offer that must travel, and how many bytes may be under way at once."""

    transfer: int
    missing: Annotated[list[int], Meta(max_length=MAX_BLOCKS)]
    credit_bytes: int
    shared: bool = False  # the offer's memory can be read here
    device: bool = False  # likewise, that of the device


class FirstToken(Struct, frozen=True):
    """The first token of the output."""

    token_ids: Annotated[list[int], Meta(max_length=64)]
    logprobs: list[tuple[float, list[tuple[int, float]]]] | None = None
    withheld: bool = False
    led: bool = False


class Ack(Struct, frozen=True, tag="ack"):
    """A whole block is staged; where it was read may be used again."""

    transfer: int
    digest: bytes


class Placed(Struct, frozen=True, tag="placed"):
    """A segment whose bytes are in the shared memory that was offered, until it is acknowledged."""

    transfer: int
    digest: BlockName
    first_layer: Annotated[int, Meta(ge=0, lt=1 << 16)]
    num_layers: Annotated[int, Meta(ge=0, lt=1 << 16)]
    offset: Annotated[int, Meta(ge=0, lt=MAX_SHARED_BYTES)]
    num_bytes: Annotated[int, Meta(ge=0, le=MAX_SEGMENT_BYTES)]
    checksum: bytes  # xxh3-128 of the bytes


class Paged(Struct, frozen=True, tag="paged"):
    """A block in a page of the device memory that was offered, until it is acknowledged; its
    `Checksum` came before."""

    transfer: int
    digest: BlockName
    offset: Annotated[int, Meta(ge=FIRST_PAGE, lt=MAX_DEVICE_BYTES)]


class Checksum(Struct, frozen=True, tag="checksum"):
    """Of a block on the device that made it (`skerry_core.page_checksums`); its bytes follow."""

    transfer: int
    digest: bytes
    checksum: Annotated[int, Meta(ge=0)]


class Commit(Struct, frozen=True, tag="commit"):
    """Everything needed was sent; `first_token` is what the sender's last step made of it.

    With counter-based sampling it, and its log-probabilities, are all the sampler state there is.
    """

    transfer: int
    first_token: FirstToken | None = field(default=None, name="made")


class Committed(Struct, frozen=True, tag="committed"):
    transfer: int


class TransferRefused(Struct, frozen=True, tag="refused"):
    """The transfer is off; the sender's blocks are its own again."""

    transfer: int
    reason: Annotated[str, Meta(max_length=512)]


Control = Offer | Need | Ack | Placed | Paged | Checksum | Commit | Committed | TransferRefused


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes of layers `first_layer` and following of one block, in canonical order."""

    transfer: int
    digest: Digest
    first_layer: int
    num_layers: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class Copied:
    """A whole block, copied out of a peer's page."""

    transfer: int
    digest: Digest
    data: Payload  # on the host where one's own device had no room


Frame = Control | Segment


def on_host(payload: Payload) -> Buffer:
    """Return bytes in host memory; those that are on a device are copied."""
    return payload.to_host() if isinstance(payload, DevicePage) else payload


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


def encode(frame: Frame) -> tuple[bytes, Buffer]:
    """Return header and payload, apart so that block bytes are never copied to be framed."""
    if isinstance(frame, Segment):
        payload = on_host(frame.payload)
        header = _HEADER.pack(
            MAGIC, VERSION, _SEGMENT, 0, frame.transfer, frame.digest,
            frame.first_layer, frame.num_layers, len(payload), xxhash.xxh3_128_digest(payload),
        )  # fmt: skip
        return header, payload
    body = _encoder.encode(frame)
    checksum = xxhash.xxh3_128_digest(body)
    header = _HEADER.pack(
        MAGIC, VERSION, _CONTROL, 0, frame.transfer, bytes(DIGEST_SIZE), 0, 0, len(body), checksum
    )
    return header, body


class KVFrameDecoder:
    """Turns received bytes into frames, whatever the split. Not usable after a TransferError."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._payload = bytearray()  # of the frame whose header is complete; a block's own memory

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Frame]:
        """Yield each frame that is complete. Raises TransferError on anything malformed."""
        rest = _moved(memoryview(data), self._header, _HEADER.size)
        while len(self._header) == _HEADER.size:
            fields = _HEADER.unpack(self._header)
            size = self._checked_size(fields)
            rest = _moved(rest, self._payload, size)
            if len(self._payload) < size:
                return
            payload, self._payload = self._payload, bytearray()
            self._header.clear()
            yield self._frame(fields, payload)
            rest = _moved(rest, self._header, _HEADER.size)

    @staticmethod
    def _checked_size(fields: tuple[object, ...]) -> int:
        magic, version, kind, size = fields[0], fields[1], fields[2], fields[8]
        if magic != MAGIC or version != VERSION:
            raise TransferError(f"not a KV frame of version {VERSION}: {magic!r}, {version!r}")
        limit = {_CONTROL: MAX_CONTROL_BYTES, _SEGMENT: MAX_SEGMENT_BYTES}.get(int(str(kind)))
        if limit is None:
            raise TransferError(f"unknown frame kind {kind}")
        if not isinstance(size, int) or size > limit:
            raise TransferError(f"a frame of {size} bytes exceeds the limit of {limit}")
        return size

    @staticmethod
    def _frame(fields: tuple[object, ...], payload: bytearray) -> Frame:
        _, _, kind, _, transfer, digest, first, layers, _, checksum = fields
        if xxhash.xxh3_128_digest(payload) != checksum:
            raise TransferError(f"checksum mismatch in transfer {transfer}")
        if kind == _SEGMENT:
            return Segment(transfer, digest, first, layers, payload)  # type: ignore[arg-type]
        try:
            control = _decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TransferError(f"malformed control frame: {error}") from error
        if control.transfer != transfer:
            raise TransferError(f"header names transfer {transfer}, body {control.transfer}")
        return control


def _moved(data: memoryview, to: bytearray, size: int) -> memoryview:
    """Fill `to` up to `size` bytes; return what is left of the data."""
    missing = size - len(to)
    to += data[:missing]
    return data[missing:]
