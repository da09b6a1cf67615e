"""KV transfers that leave: one connection for each, made again when it breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

import msgspec

from skerry_core.device_pages import DevicePages
from skerry_regions.address import Address
from skerry_regions.kv.carriers import LentMemory
from skerry_regions.kv.frames import (
    Ack,
    Committed,
    Digest,
    FirstToken,
    Frame,
    KVFrameDecoder,
    Need,
    Offer,
    Payload,
    Segment,
    TransferError,
    TransferRefused,
    encode,
)
from skerry_regions.kv.sender import TransferSender
from skerry_regions.kv.shared_slots import SharedSlots
from skerry_regions.wire import link_auth
from skerry_regions.wire.link_auth import NO_CREDENTIALS, LinkCredentials
from skerry_regions.wire.sockets import SocketEnd

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
RECONNECTS = 3  # of one transfer; checked blocks are not sent again
RECONNECT_PAUSE = 0.05  # seconds

LastWord = Committed | TransferRefused | None
"""What a peer said of a transfer in the end: it has all, or wants none of it. None: nothing, as it
could not be reached, or was given up."""


class OutgoingTransfer:
    """The sending side of one transfer: `seal` blocks as there are any, then `finish`.

    `when_needed` is called once, with the blocks that the peer has not: others need not be sealed.
    On one host blocks go through `slots`, while there are free ones and the peer can read them.
    Blocks that are in `pages` stay there, if it can read those.
    """

    def __init__(
        self,
        address: Address,
        offer: Offer,
        credentials: LinkCredentials = NO_CREDENTIALS,
        *,
        slots: SharedSlots | None = None,
        pages: DevicePages | None = None,
        when_needed: Callable[[list[Digest]], None] = lambda _: None,
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._lent = LentMemory(slots, pages) if address.path else LentMemory(None)
        offer = msgspec.structs.replace(offer, shared=self._lent.shared, device=self._lent.device)
        self._when_needed: Callable[[list[Digest]], None] | None = when_needed
        self._sender = TransferSender(offer)
        self._transport: asyncio.Transport | None = None
        self._lost = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"KV transfer {offer.transfer}")
        self._task.add_done_callback(lambda _: self._end())

    @property
    def sent(self) -> tuple[int, int]:
        """Return blocks that left so far, and their bytes."""
        num_sent = self._sender.num_sent
        return num_sent, num_sent * self._sender.offer.block_bytes

    @property
    def pages(self) -> DevicePages | None:
        """Return pages in which blocks may be sealed now: the peer reads them. From any thread."""
        return self._lent.pages

    def seal(self, digest: Digest, block: Payload, checksum: int | None = None) -> None:
        """Send a block's bytes, which are final; they leave within the peer's credit."""
        self._sender.seal(digest, block, checksum)
        self._flush()

    def finish(self, first_token: FirstToken | None) -> None:
        """Note that no more blocks come."""
        self._sender.finish(first_token)
        self._flush()

    def when_over(self, callback: Callable[[LastWord], None]) -> None:
        """Call it at the end, with the peer's last word."""
        self._task.add_done_callback(lambda _: callback(self._sender.outcome))

    def cancel(self) -> None:
        """Give up, and let the peer know: it need not wait for the lease to lapse. Idempotent."""
        if self._task.done():
            return
        self._task.cancel()
        if self._transport is not None:
            refusal = TransferRefused(self._sender.offer.transfer, "the sender gave up")
            self._transport.writelines(encode(refusal))
            self._transport.close()

    def _end(self) -> None:
        """End: nothing more is sent."""
        self._lent.release()
        self._sender.close()

    async def _run(self) -> None:
        for _ in range(1 + RECONNECTS):
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await link_auth.connect(
                        self._address, lambda: _OutgoingLink(self), self._credentials, "kv"
                    )
                await self._lost.wait()
            except (OSError, TimeoutError):
                pass
            if self._sender.outcome is not None:
                return
            await asyncio.sleep(RECONNECT_PAUSE)

    # --- called by the connection ----------------------------------------------------------------

    def connected(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._lost.clear()
        self._lent.release()
        transport.writelines(encode(self._sender.reconnect()))

    def received(self, frame: Frame) -> None:
        """Raises TransferError when the peer is to be dropped."""
        self._sender.receive(frame)
        if isinstance(frame, Need | Ack):
            self._lent.receive(frame)
        if isinstance(frame, Need) and self._when_needed is not None:
            when_needed, self._when_needed = self._when_needed, None
            when_needed(self._sender.needed)
        if self._sender.outcome is not None:
            self._drop()
        else:
            self._flush()

    def disconnected(self) -> None:
        self._transport = None
        self._lost.set()

    def _flush(self) -> None:
        if self._transport is not None:
            for frame in self._sender.ready():
                carried = self._lent.place(frame) if isinstance(frame, Segment) else frame
                self._transport.writelines(encode(carried))

    def _drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _OutgoingLink(SocketEnd):
    """One connection to the receiver."""

    def __init__(self, transfer: OutgoingTransfer) -> None:
        self._transfer = transfer
        self._decoder = KVFrameDecoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transfer.connected(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                self._transfer.received(frame)
        except TransferError as error:
            logger.warning("a receiver of KV was dropped: %s", error)
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transfer.disconnected()
