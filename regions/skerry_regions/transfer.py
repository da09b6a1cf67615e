"""Moving KV blocks between nodes: offer, need, segments, commit. Bytes in, frames out; no sockets.

A node pushes blocks, while it computes them or from its cache; its peer says first what it lacks:

    sender                                   receiver
      │ ── Offer(transfer, token, digests) ──▶ │  staging is reserved by token beforehand
      │ ◀──────────── Need(missing, credit) ── │  blocks it holds already never travel
      │ ── Segment(digest, layers, bytes) … ─▶ │  as blocks are sealed, within the credit
      │ ◀────────────────── Ack(digest) … ── │  checked and staged; gives credit back
      │ ── Commit(first token) ────────────▶ │  everything was sent
      │ ◀── Committed | Refused(reason) ────── │  the blocks are adopted, or nothing is

Rules that live here: every length is bounded before memory is touched; a payload whose xxh3-128
differs is refused; a transfer answers only to its token; a broken connection loses no checked
block (a new Offer of the same transfer is answered with what is still missing); staging belongs to
the transfer until its lease lapses or the blocks are adopted. Deadlines are seconds on the caller's
monotonic clock, passed in.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
import xxhash
from msgspec import Meta, Struct

from skerry_regions.trace_context import TraceContext

MAGIC = b"SKKV"
VERSION = 1
DIGEST_BYTES = 16
MAX_CONTROL_BYTES = 1 << 20  # an Offer of 64k digests
MAX_SEGMENT_BYTES = 64 << 20  # a block of the largest model we know, with room
MAX_BLOCKS = 1 << 16  # 4 million tokens

# magic, version, kind, reserved, transfer, digest, first layer, layers, payload bytes, checksum
_HEADER = struct.Struct("<4sBBHQ16sHHI16s")
_CONTROL, _SEGMENT = 1, 2

Digest = bytes
Buffer = bytes | bytearray | memoryview
KVDtype = Literal["float16", "bfloat16", "float32"]
DTYPE_BYTES: dict[KVDtype, int] = {"float16": 2, "bfloat16": 2, "float32": 4}


class TransferError(Exception):
    """The peer broke the protocol, or its bytes are damaged; the message says what and where."""


# --- frames ------------------------------------------------------------------------------------


class Offer(Struct, frozen=True, tag="offer"):
    """The blocks a request needs, in order; `tail_tokens` counts those of a last, open block."""

    transfer: int
    token: bytes
    request_id: Annotated[str, Meta(max_length=128)]
    epoch: int
    numeric_build: Annotated[str, Meta(max_length=128)]
    kv_dtype: KVDtype
    block_bytes: Annotated[int, Meta(ge=1, le=MAX_SEGMENT_BYTES)]
    num_layers: Annotated[int, Meta(ge=1, le=1 << 12)]
    digests: Annotated[list[bytes], Meta(max_length=MAX_BLOCKS)]
    tail_tokens: Annotated[int, Meta(ge=0, lt=64)] = 0
    trace: TraceContext | None = None  # the span that it is part of


class Need(Struct, frozen=True, tag="need"):
    """Indices into the offer that must travel, and how many bytes may be under way at once."""

    transfer: int
    missing: Annotated[list[int], Meta(max_length=MAX_BLOCKS)]
    credit_bytes: int


class Made(Struct, frozen=True):
    """The first token of the output."""

    token_ids: Annotated[list[int], Meta(max_length=64)]
    logprobs: list[tuple[float, list[tuple[int, float]]]] | None = None


class Ack(Struct, frozen=True, tag="ack"):
    """A whole block is checked and staged."""

    transfer: int
    digest: bytes


class Commit(Struct, frozen=True, tag="commit"):
    """Everything needed was sent; `made` is what the sender's last step made of it.

    With counter-based sampling the first token, and its log-probabilities, are all the sampler
    state there is.
    """

    transfer: int
    made: Made | None = None


class Committed(Struct, frozen=True, tag="committed"):
    transfer: int


class Refused(Struct, frozen=True, tag="refused"):
    """The transfer is off; the sender's blocks are its own again."""

    transfer: int
    reason: Annotated[str, Meta(max_length=512)]


Control = Offer | Need | Ack | Commit | Committed | Refused


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes of layers `first_layer` and following of one block, in canonical order."""

    transfer: int
    digest: Digest
    first_layer: int
    num_layers: int
    payload: Buffer


Frame = Control | Segment

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


def encode(frame: Frame) -> tuple[bytes, Buffer]:
    """Header and payload, apart so that block bytes are never copied to be framed."""
    if isinstance(frame, Segment):
        payload = frame.payload
        header = _HEADER.pack(
            MAGIC, VERSION, _SEGMENT, 0, frame.transfer, frame.digest,
            frame.first_layer, frame.num_layers, len(payload), xxhash.xxh3_128_digest(payload),
        )  # fmt: skip
        return header, payload
    body = _encoder.encode(frame)
    checksum = xxhash.xxh3_128_digest(body)
    header = _HEADER.pack(
        MAGIC, VERSION, _CONTROL, 0, frame.transfer, bytes(DIGEST_BYTES), 0, 0, len(body), checksum
    )
    return header, body


class FrameDecoder:
    """Turns received bytes into frames, whatever the split. Not usable after a TransferError."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Frame]:
        """Yield each frame that is complete. Raises TransferError on anything malformed."""
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            fields = _HEADER.unpack_from(self._buffer)
            size = self._checked_size(fields)
            end = _HEADER.size + size
            if len(self._buffer) < end:
                return
            payload = bytes(memoryview(self._buffer)[_HEADER.size : end])
            del self._buffer[:end]
            yield self._frame(fields, payload)

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
    def _frame(fields: tuple[object, ...], payload: bytes) -> Frame:
        _, _, kind, _, transfer, digest, first, layers, _, checksum = fields
        if xxhash.xxh3_128_digest(payload) != checksum:
            raise TransferError(f"checksum mismatch in transfer {transfer}")
        if kind == _SEGMENT:
            return Segment(transfer, digest, first, layers, payload)  # type: ignore[arg-type]
        try:
            control = _decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise TransferError(f"malformed control frame: {error}") from error
        if control.transfer != transfer:
            raise TransferError(f"header names transfer {transfer}, body {control.transfer}")
        return control


# --- sender ------------------------------------------------------------------------------------


class Sender:
    """One outgoing transfer: hand it blocks as they are sealed, send what `ready` yields.

    The order of sending is the order of sealing. Blocks are dropped here once acknowledged, so a
    reconnect re-sends exactly what was not.
    """

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self._needed: set[Digest] | None = None  # None until the peer answered
        self._waiting: dict[Digest, bytes | memoryview] = {}  # sealed, not acknowledged
        self._in_flight: set[Digest] = set()
        self._credit = 0
        self._finished = False
        self._made: Made | None = None
        self._commit_sent = False
        self.num_sent = 0  # blocks, those sent again included
        self.outcome: Committed | Refused | None = None

    def reconnect(self) -> Offer:
        """A new connection: forget what was under way and offer again."""
        self._needed = None
        self._in_flight.clear()
        self._commit_sent = False
        return self.offer

    def seal(self, digest: Digest, block: bytes | memoryview) -> None:
        """A block's bytes are final. Raises ValueError on a block that was not offered."""
        if digest not in self.offer.digests:
            raise ValueError(f"block {digest.hex()} is not part of transfer {self.offer.transfer}")
        if len(block) != self.offer.block_bytes:
            raise ValueError(f"a block has {self.offer.block_bytes} bytes, got {len(block)}")
        if self._needed is None or digest in self._needed:
            self._waiting[digest] = block

    def finish(self, made: Made | None = None) -> None:
        """No more blocks will be sealed."""
        self._finished = True
        self._made = made

    @property
    def needed(self) -> list[Digest]:
        """Blocks that the peer lacks, as far as it has said, in the order of the offer."""
        return [digest for digest in self.offer.digests if digest in (self._needed or ())]

    def receive(self, frame: Frame) -> None:
        """Take the peer's answer. Raises TransferError on one that makes no sense."""
        match frame:
            case Need():
                self._receive_need(frame)
            case Ack():
                if frame.digest in self._in_flight:
                    self._in_flight.discard(frame.digest)
                    self._waiting.pop(frame.digest, None)
                    if self._needed is not None:
                        self._needed.discard(frame.digest)
                    self._credit += self.offer.block_bytes
            case Committed() | Refused():
                self.outcome = frame
            case _:
                raise TransferError(f"a sender cannot receive {type(frame).__name__}")

    def _receive_need(self, need: Need) -> None:
        offered = self.offer.digests
        if any(not 0 <= index < len(offered) for index in need.missing):
            raise TransferError(f"transfer {self.offer.transfer}: need outside of the offer")
        self._needed = {offered[index] for index in need.missing}
        self._credit = need.credit_bytes
        self._waiting = {d: b for d, b in self._waiting.items() if d in self._needed}

    def ready(self) -> Iterator[Segment | Commit]:
        """What may be sent now, within the peer's credit."""
        if self._needed is None or self.outcome is not None:
            return
        size = self.offer.block_bytes
        for digest, block in self._waiting.items():
            if digest in self._in_flight:
                continue
            if self._credit < size:
                return
            self._credit -= size
            self._in_flight.add(digest)
            self.num_sent += 1
            yield Segment(self.offer.transfer, digest, 0, self.offer.num_layers, block)
        if self._finished and not self._needed and not self._commit_sent:
            self._commit_sent = True
            yield Commit(self.offer.transfer, self._made)


# --- receiver ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Staging:
    """Memory of one block on its way in, and which of its layers have arrived."""

    data: bytearray
    layers: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Incoming:
    token: bytes
    expires: float
    any_build: bool
    offer: Offer | None = None
    missing: set[Digest] = field(default_factory=set)
    staging: dict[Digest, _Staging] = field(default_factory=dict)
    complete: dict[Digest, Buffer | None] = field(default_factory=dict)  # None: taken


@dataclass(frozen=True, slots=True)
class Arrived:
    """All blocks of a transfer are here and checked; adopt them, then answer `Committed`.

    `blocks` are those that were not taken before.
    """

    transfer: int
    request_id: str
    epoch: int
    tail_tokens: int
    made: Made | None
    blocks: list[tuple[Digest, Buffer]]  # in the order of the offer
    numeric_build: str
    kv_dtype: KVDtype
    num_blocks: int  # that came, those taken before included
    num_bytes: int  # of these


class Receiver:
    """All incoming transfers of a node. Staging is bounded by `budget_bytes` over all of them."""

    def __init__(
        self, *, numeric_build: str, block_elements: int, budget_bytes: int, credit_bytes: int
    ) -> None:
        self.numeric_build = numeric_build
        self._block_elements = block_elements  # numbers in a block, whatever their dtype
        self._budget = budget_bytes
        self._credit = credit_bytes
        self._incoming: dict[int, _Incoming] = {}

    @property
    def staged_bytes(self) -> int:
        return sum(
            each.offer.block_bytes
            * (len(each.staging) + sum(data is not None for data in each.complete.values()))
            for each in self._incoming.values()
            if each.offer is not None
        )

    def reserve(
        self,
        transfer: int,
        token: bytes,
        now: float,
        lease_seconds: float,
        *,
        any_build: bool = False,
    ) -> None:
        """Expect a transfer under this token until the lease lapses.

        `any_build` takes copies of another numeric build too: their bits are not this node's.
        """
        self._incoming[transfer] = _Incoming(token, now + lease_seconds, any_build)

    def is_reserved(self, transfer: int) -> bool:
        """Whether it is still waited for."""
        return transfer in self._incoming

    def renew(self, transfer: int, now: float, lease_seconds: float) -> None:
        if (incoming := self._incoming.get(transfer)) is not None:
            incoming.expires = now + lease_seconds

    def release(self, transfer: int) -> None:
        """Forget a transfer and free its staging. Unknown ones are ignored."""
        self._incoming.pop(transfer, None)

    def staged(self, transfer: int, digest: Digest) -> tuple[Offer, Buffer] | None:
        """A block that is here and checked, and the offer it belongs to; None otherwise."""
        incoming = self._incoming.get(transfer)
        if incoming is None or incoming.offer is None:
            return None
        data = incoming.complete.get(digest)
        return None if data is None else (incoming.offer, data)

    def take(self, transfer: int, digest: Digest) -> None:
        """A checked block has its place already: free its staging. Unknown ones are ignored."""
        incoming = self._incoming.get(transfer)
        if incoming is not None and digest in incoming.complete:
            incoming.complete[digest] = None

    def expire(self, now: float) -> list[int]:
        """Free every transfer whose lease has lapsed; returns their ids."""
        lapsed = [each for each, state in self._incoming.items() if state.expires <= now]
        for transfer in lapsed:
            del self._incoming[transfer]
        return lapsed

    def receive(self, frame: Frame, held: Iterable[Digest] = ()) -> list[Control | Arrived]:
        """Take one frame; `held` are the offered digests that this node has, and the caller has
        pinned until the transfer ends (looked at on an Offer only).

        Returns answers for the peer, and `Arrived` for the caller once everything is here. A
        refusal ends the transfer, except that of a wrong token: strangers end nothing.
        """
        incoming = self._incoming.get(frame.transfer)
        if incoming is None:
            return [Refused(frame.transfer, "no such transfer, or its lease lapsed")]
        match frame:
            case Offer():
                return [self._receive_offer(incoming, frame, held)]
            case Segment():
                return self._receive_segment(incoming, frame)
            case Commit():
                return [self._receive_commit(incoming, frame)]
            case Refused():
                self.release(frame.transfer)
                return []
            case _:
                raise TransferError(f"a receiver cannot receive {type(frame).__name__}")

    def _refuse(self, transfer: int, reason: str) -> Refused:
        self.release(transfer)
        return Refused(transfer, reason)

    def _receive_offer(
        self, incoming: _Incoming, offer: Offer, held: Iterable[Digest]
    ) -> Need | Refused:
        if not hmac.compare_digest(incoming.token, offer.token):
            return Refused(offer.transfer, "wrong token")
        reason = self._objection(incoming, offer)
        if reason is not None:
            return self._refuse(offer.transfer, reason)
        if incoming.offer is not None and incoming.offer.digests != offer.digests:
            return self._refuse(offer.transfer, "a transfer cannot change what it offers")
        incoming.offer = offer
        have = set(held) | set(incoming.complete)
        incoming.missing = set(offer.digests) - have
        incoming.staging.clear()  # half a block is sent again from its start
        missing = [i for i, digest in enumerate(offer.digests) if digest in incoming.missing]
        return Need(offer.transfer, missing, max(self._credit, offer.block_bytes))

    def _objection(self, incoming: _Incoming, offer: Offer) -> str | None:
        if offer.numeric_build != self.numeric_build and not incoming.any_build:
            return f"built by {offer.numeric_build}, this node takes {self.numeric_build}"
        expected = self._block_elements * DTYPE_BYTES[offer.kv_dtype]
        if offer.block_bytes != expected:
            return f"blocks of {offer.block_bytes} bytes, expected {expected}"
        if any(len(digest) != DIGEST_BYTES for digest in offer.digests):
            return "a digest has the wrong length"
        if len(set(offer.digests)) != len(offer.digests):
            return "a block is offered twice"
        return None

    def _receive_segment(self, incoming: _Incoming, segment: Segment) -> list[Control | Arrived]:
        offer = incoming.offer
        if offer is None or segment.digest not in offer.digests:
            return [self._refuse(segment.transfer, "a segment that was not offered")]
        if segment.digest not in incoming.missing:
            return [Ack(segment.transfer, segment.digest)]  # sent twice after a reconnect
        layer_bytes, odd = divmod(offer.block_bytes, offer.num_layers)
        last = segment.first_layer + segment.num_layers
        if (
            odd
            or last > offer.num_layers
            or len(segment.payload) != layer_bytes * segment.num_layers
        ):
            return [self._refuse(segment.transfer, "a segment that does not fit its block")]
        staged = incoming.staging.get(segment.digest)
        if staged is None and self.staged_bytes + offer.block_bytes > self._budget:
            return [self._refuse(segment.transfer, "no staging memory left")]
        data = segment.payload  # a whole block, most often: kept as it came
        if segment.num_layers < offer.num_layers:
            if staged is None:
                staged = incoming.staging[segment.digest] = _Staging(bytearray(offer.block_bytes))
            start = layer_bytes * segment.first_layer
            staged.data[start : start + len(data)] = data
            staged.layers.update(range(segment.first_layer, last))
            if len(staged.layers) < offer.num_layers:
                return []
            data = staged.data
        incoming.staging.pop(segment.digest, None)
        incoming.missing.discard(segment.digest)
        incoming.complete[segment.digest] = data
        return [Ack(segment.transfer, segment.digest)]

    def _receive_commit(self, incoming: _Incoming, commit: Commit) -> Refused | Arrived:
        offer = incoming.offer
        if offer is None or incoming.missing:
            count = len(incoming.missing) if offer else "all"
            return self._refuse(commit.transfer, f"committed with {count} blocks missing")
        complete = [(digest, incoming.complete.get(digest)) for digest in offer.digests]
        return Arrived(
            transfer=commit.transfer,
            request_id=offer.request_id,
            epoch=offer.epoch,
            tail_tokens=offer.tail_tokens,
            made=commit.made,
            blocks=[(digest, data) for digest, data in complete if data is not None],
            numeric_build=offer.numeric_build,
            kv_dtype=offer.kv_dtype,
            num_blocks=len(incoming.complete),
            num_bytes=len(incoming.complete) * offer.block_bytes,
        )
