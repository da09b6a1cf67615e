"""Moving KV blocks between nodes: offer, need, segments, commit. Frames in, frames out; no sockets.

A node pushes blocks, while it computes them or from its cache; its peer says first what it lacks:

    sender                                   receiver
      │ ── Offer(transfer, token, digests) ──▶ │  staging is reserved by token beforehand
      │ ◀──────────── Need(missing, credit) ── │  blocks it holds already never travel
      │ ── Segment(digest, layers, bytes) … ─▶ │  as blocks are sealed, within the credit; before
      │                                        │  it its Checksum, if it came out of a device
      │ ◀────────────────── Ack(digest) … ── │  staged; gives credit back
      │ ── Commit(first token) ────────────▶ │  everything was sent
      │ ◀─ Committed | TransferRefused(reason) │  the blocks are adopted, or nothing is

Rules that live here: a transfer answers only to its token; a broken connection loses no checked
block (a new Offer of the same transfer is answered with what is still missing); staging belongs to
the transfer until it is released or the blocks are adopted. The caller keeps the time of leases.
Bytes are checked as they arrive; those copied from a page of a device, where they are adopted.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

from skerry_core.config import KVDtype
from skerry_regions.digests import DIGEST_SIZE
from skerry_regions.kv.frames import (
    DTYPE_BYTES,
    Ack,
    Checksum,
    Commit,
    Control,
    Copied,
    Digest,
    FirstToken,
    Frame,
    Need,
    Offer,
    Payload,
    Segment,
    TransferError,
    TransferRefused,
    on_host,
)


@dataclass(slots=True)
class _Staging:
    """Memory of one block on its way in, and which of its layers have arrived."""

    data: bytearray
    layers: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Incoming:
    token: bytes
    any_build: bool
    offer: Offer | None = None
    missing: set[Digest] = field(default_factory=set)
    staging: dict[Digest, _Staging] = field(default_factory=dict)
    complete: dict[Digest, Payload | None] = field(default_factory=dict)  # None: taken
    checksums: dict[Digest, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrived:
    """All blocks of a transfer are here and checked; adopt them, then answer `Committed`.

    `blocks` are those that were not taken before.
    """

    tail_tokens: int
    first_token: FirstToken | None
    blocks: list[tuple[Digest, Payload]]  # in the order of the offer
    checksums: dict[Digest, int]  # of those that came out of a device's memory
    numeric_build: str
    kv_dtype: KVDtype
    num_blocks: int  # that came, those taken before included
    num_bytes: int  # of these


class TransferReceiver:
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

    def reserve(self, transfer: int, token: bytes, *, any_build: bool = False) -> None:
        """Expect a transfer under this token until it is released.

        `any_build` takes copies of another numeric build too: their bits are not this node's.
        """
        self._incoming[transfer] = _Incoming(token, any_build)

    def is_reserved(self, transfer: int) -> bool:
        """Return whether it is still waited for."""
        return transfer in self._incoming

    def release(self, transfer: int) -> None:
        """Forget a transfer and free its staging. Unknown ones are ignored."""
        self._incoming.pop(transfer, None)

    def staged(self, transfer: int, digest: Digest) -> tuple[Offer, Payload, int | None] | None:
        """Return a block that is here: the offer it belongs to, its bytes, and what its device
        reported as its checksum. None otherwise."""
        incoming = self._incoming.get(transfer)
        if incoming is None or incoming.offer is None:
            return None
        data = incoming.complete.get(digest)
        return None if data is None else (incoming.offer, data, incoming.checksums.get(digest))

    def take(self, transfer: int, digest: Digest) -> None:
        """Free the staging of a block that has its place already. Unknown ones are ignored."""
        incoming = self._incoming.get(transfer)
        if incoming is not None and digest in incoming.complete:
            incoming.complete[digest] = None

    def receive(
        self, frame: Frame | Copied, held: Iterable[Digest] = ()
    ) -> list[Control | Arrived]:
        """Take one frame; `held` are the offered digests that this node has, and the caller has
        pinned until the transfer ends (looked at on an Offer only).

        Returns answers for the peer, and `Arrived` for the caller once everything is here. A
        refusal ends the transfer, except that of a wrong token: strangers end nothing.
        """
        incoming = self._incoming.get(frame.transfer)
        if incoming is None:
            return [TransferRefused(frame.transfer, "no such transfer, or its lease lapsed")]
        match frame:
            case Offer():
                return [self._receive_offer(incoming, frame, held)]
            case Checksum():
                return self._receive_checksum(incoming, frame)
            case Segment():
                return self._receive_segment(incoming, frame)
            case Copied():
                return self._receive_copied(incoming, frame)
            case Commit():
                return [self._receive_commit(incoming, frame)]
            case TransferRefused():
                self.release(frame.transfer)
                return []
            case _:
                raise TransferError(f"a receiver cannot receive {type(frame).__name__}")

    def _refuse(self, transfer: int, reason: str) -> TransferRefused:
        self.release(transfer)
        return TransferRefused(transfer, reason)

    def _receive_offer(
        self, incoming: _Incoming, offer: Offer, held: Iterable[Digest]
    ) -> Need | TransferRefused:
        if not hmac.compare_digest(incoming.token, offer.token):
            return TransferRefused(offer.transfer, "wrong token")
        reason = self._objection(incoming, offer)
        if reason is not None:
            return self._refuse(offer.transfer, reason)
        if incoming.offer is not None and incoming.offer != offer:
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
        if any(len(digest) != DIGEST_SIZE for digest in offer.digests):
            return "a digest has the wrong length"
        if len(set(offer.digests)) != len(offer.digests):
            return "a block is offered twice"
        return None

    def _receive_checksum(self, incoming: _Incoming, frame: Checksum) -> list[Control | Arrived]:
        if incoming.offer is None or frame.digest not in incoming.offer.digests:
            return [self._refuse(frame.transfer, "a checksum of what was not offered")]
        incoming.checksums[frame.digest] = frame.checksum
        return []

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
            staged.data[start : start + len(data)] = on_host(data)
            staged.layers.update(range(segment.first_layer, last))
            if len(staged.layers) < offer.num_layers:
                return []
            data = staged.data
        incoming.staging.pop(segment.digest, None)
        incoming.missing.discard(segment.digest)
        incoming.complete[segment.digest] = data
        return [Ack(segment.transfer, segment.digest)]

    def _receive_copied(self, incoming: _Incoming, block: Copied) -> list[Control | Arrived]:
        """Take a copied block, which is nothing without the checksum by which its engine will judge
        it."""
        offer = incoming.offer
        if offer is None or block.digest not in incoming.checksums:
            return [self._refuse(block.transfer, "a page without its checksum")]
        whole = Segment(block.transfer, block.digest, 0, offer.num_layers, block.data)
        return self._receive_segment(incoming, whole)

    def _receive_commit(self, incoming: _Incoming, commit: Commit) -> TransferRefused | Arrived:
        offer = incoming.offer
        if offer is None or incoming.missing:
            count = len(incoming.missing) if offer else "all"
            return self._refuse(commit.transfer, f"committed with {count} blocks missing")
        complete = [(digest, incoming.complete.get(digest)) for digest in offer.digests]
        return Arrived(
            tail_tokens=offer.tail_tokens,
            first_token=commit.first_token,
            blocks=[(digest, data) for digest, data in complete if data is not None],
            checksums=incoming.checksums,
            numeric_build=offer.numeric_build,
            kv_dtype=offer.kv_dtype,
            num_blocks=len(incoming.complete),
            num_bytes=len(incoming.complete) * offer.block_bytes,
        )
