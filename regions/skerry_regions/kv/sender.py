"""The sending side of one transfer of KV blocks: frames in, frames out; no sockets.

`receiver` has the protocol and its rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from skerry_regions.kv.frames import (
    Ack,
    Checksum,
    Commit,
    Committed,
    Digest,
    FirstToken,
    Frame,
    Need,
    Offer,
    Payload,
    Segment,
    TransferError,
    TransferRefused,
)


class TransferSender:
    """One outgoing transfer: hand it blocks as they are sealed, send what `ready` yields.

    The order of sending is the order of sealing. Blocks are dropped here once acknowledged, so a
    reconnect re-sends exactly what was not.
    """

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self._needed: set[Digest] | None = None  # None until the peer answered
        self._waiting: dict[Digest, Payload] = {}  # sealed, not acknowledged
        self._checksums: dict[Digest, int] = {}
        self._in_flight: set[Digest] = set()
        self._credit = 0
        self._finished = False
        self._is_closed = False
        self._first_token: FirstToken | None = None
        self._commit_sent = False
        self.num_sent = 0  # blocks, those sent again included
        self.outcome: Committed | TransferRefused | None = None

    def reconnect(self) -> Offer:
        """Forget what was under way and offer again, on a new connection."""
        self._needed = None
        self._in_flight.clear()
        self._commit_sent = False
        return self.offer

    def seal(self, digest: Digest, block: Payload, checksum: int | None = None) -> None:
        """Note that a block's bytes are final. Raises ValueError on a block that was not
        offered."""
        if digest not in self.offer.digests:
            raise ValueError(f"block {digest.hex()} is not part of transfer {self.offer.transfer}")
        if len(block) != self.offer.block_bytes:
            raise ValueError(f"a block has {self.offer.block_bytes} bytes, got {len(block)}")
        if not self._is_closed and (self._needed is None or digest in self._needed):
            self._waiting[digest] = block
            if checksum is not None:
                self._checksums[digest] = checksum

    def finish(self, first_token: FirstToken | None = None) -> None:
        """Note that no more blocks will be sealed."""
        self._finished = True
        self._first_token = first_token

    def close(self) -> None:
        """Let go of the transfer's blocks, and take no more: it is over."""
        self._is_closed = True
        self._waiting.clear()

    @property
    def needed(self) -> list[Digest]:
        """Return blocks that the peer lacks, as far as it has said, in the order of the offer."""
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
            case Committed() | TransferRefused():
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

    def ready(self) -> Iterator[Checksum | Segment | Commit]:
        """Yield what may be sent now, within the peer's credit."""
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
            if digest in self._checksums:
                yield Checksum(self.offer.transfer, digest, self._checksums[digest])
            yield Segment(self.offer.transfer, digest, 0, self.offer.num_layers, block)
        if self._finished and not self._needed and not self._commit_sent:
            self._commit_sent = True
            yield Commit(self.offer.transfer, self._first_token)
