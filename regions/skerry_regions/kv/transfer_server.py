"""KV transfers that arrive: whoever takes KV listens, a sender connects once per transfer.

A transfer may always come to nothing: its lease lapses, a connection breaks for good, the peer
refuses. Then the receiver computes the prompt itself; time is lost, and nothing else.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Collection

import msgspec

from skerry_core.device_pages import DevicePages
from skerry_regions.address import Address
from skerry_regions.kv.carriers import PeerMemory
from skerry_regions.kv.frames import (
    Ack,
    Committed,
    Control,
    Copied,
    Digest,
    Frame,
    KVFrameDecoder,
    Need,
    Offer,
    Paged,
    Payload,
    Placed,
    TransferError,
    TransferRefused,
    encode,
)
from skerry_regions.kv.receiver import Arrived, TransferReceiver
from skerry_regions.wire import link_auth
from skerry_regions.wire.link_auth import NO_CREDENTIALS, LinkCredentials
from skerry_regions.wire.sockets import SocketEnd

logger = logging.getLogger(__name__)

RETURN_SECONDS = 1.0  # in which a sender that lost its connection must be back
EARLY_SECONDS = 2.0  # in which a request must come whose KV was offered before it
MAX_EARLY = 64  # such offers

Held = Callable[[Collection[Digest]], set[Digest]]
"""Which of some digests the node's pool has. An answer may be old by now: that costs time."""

Take = Callable[[Offer, Digest, Payload, int | None, Callable[[], None]], None]
"""Gets each block as soon as it is staged, and its device's checksum. It may keep it, and says so
by the callback: then its staging is free. What is not kept by the end comes with `Arrived`."""


class TransferServer:
    """The receiving side. Lives on one event loop."""

    def __init__(
        self,
        receiver: TransferReceiver,
        held: Held,
        pages: Callable[[], DevicePages | None] = lambda: None,
    ) -> None:
        """`pages` returns one's own, once a sender has any."""
        self.receiver = receiver
        self._held = held
        self._pages = pages
        self._loop = asyncio.get_running_loop()
        self.expected: dict[int, asyncio.Future[Arrived | None]] = {}
        self._leases: dict[int, asyncio.TimerHandle] = {}
        self._takers: dict[int, Take] = {}
        self._links: set[_IncomingLink] = set()
        self._carriers: dict[int, _IncomingLink] = {}  # the newest connection of each transfer
        self.early: dict[int, tuple[Offer, _IncomingLink]] = {}  # offers that none expects yet
        self._server: link_auth.LinkListener | None = None
        self._is_local = False  # senders are processes of this host

    async def listen(
        self, address: Address, credentials: LinkCredentials = NO_CREDENTIALS
    ) -> Address:
        """Start accepting; returns where. Raises what `link_auth.listen` raises."""
        self._server, bound = await link_auth.listen(
            address, lambda: _IncomingLink(self), credentials, "kv"
        )
        self._is_local = bool(bound.path)
        return bound

    def expect(
        self,
        transfer: int,
        token: bytes,
        lease_seconds: float,
        *,
        any_build: bool = False,
        take: Take | None = None,
    ) -> asyncio.Future[Arrived | None]:
        """Take this transfer until the lease lapses; the result is None when it came to nothing.

        Cancelling the future ends the lease. Raises TransferError on one that is expected already.
        """
        if transfer in self.expected:
            raise TransferError(f"KV transfer {transfer} is expected already")
        future: asyncio.Future[Arrived | None] = self._loop.create_future()
        self.receiver.reserve(transfer, token, any_build=any_build)
        self.expected[transfer] = future
        if take is not None:
            self._takers[transfer] = take
        self._leases[transfer] = self._loop.call_later(lease_seconds, self._settle, transfer, None)
        future.add_done_callback(lambda _: self._settle(transfer, None))
        if (early := self.early.pop(transfer, None)) is not None:
            offer, link = early
            link.send(self._answers(offer, link))
        return future

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in list(self._links):
            link.drop()
        for transfer in list(self.expected):
            self._settle(transfer, None)
        await asyncio.sleep(0)

    def receive(self, frame: Frame | Copied, link: _IncomingLink) -> list[Control]:
        """Return answers to one frame. Raises TransferError when the peer is to be dropped.

        The edge sends to both nodes at once: the offer may be here before the request that it is
        for.
        """
        if isinstance(frame, Offer) and self._hold(frame, link):
            return []
        if isinstance(frame, TransferRefused):
            self.early.pop(frame.transfer, None)
        return self._answers(frame, link)

    def _answers(self, frame: Frame | Copied, link: _IncomingLink) -> list[Control]:
        held: set[Digest] = set()
        if isinstance(frame, Offer) and self._is_own_build(frame):
            held = self._held(frame.digests)  # a copy of another build has another name here
        answers: list[Control] = []
        for answer in self.receiver.receive(frame, held):
            if isinstance(frame, Offer) and isinstance(answer, Need):
                answers.append(self._with_memory(answer, frame, link) if self._is_local else answer)
            elif isinstance(answer, Arrived):
                self._settle(frame.transfer, answer)
                answers.append(Committed(frame.transfer))
            else:
                if isinstance(answer, TransferRefused):
                    logger.warning(
                        "KV transfer %d refused: %s",
                        frame.transfer,
                        answer.reason,
                        extra={"fields": _fields(frame)},
                    )
                answers.append(answer)
                if isinstance(answer, Ack):
                    self._offer_to_taker(answer)
        if not self.receiver.is_reserved(frame.transfer):
            self._settle(frame.transfer, None)
        elif isinstance(frame, Offer):
            self._carriers[frame.transfer] = link
        return answers

    def _is_own_build(self, offer: Offer) -> bool:
        return offer.numeric_build == self.receiver.numeric_build

    def _with_memory(self, need: Need, offer: Offer, link: _IncomingLink) -> Need:
        """Say which memory of the sender's can be read here. KV of another build is converted on
        the host, so it comes there."""
        shared, device = link.memory.open(offer.shared), False
        if offer.device is not None and self._is_own_build(offer):
            device = link.memory.open_device(offer.device, self._pages())
        return msgspec.structs.replace(need, shared=shared, device=device)

    def _offer_to_taker(self, ack: Ack) -> None:
        take = self._takers.get(ack.transfer)
        staged = self.receiver.staged(ack.transfer, ack.digest)
        if take is not None and staged is not None:
            offer, data, checksum = staged
            taken = functools.partial(self.receiver.take, ack.transfer, ack.digest)
            take(offer, ack.digest, data, checksum, taken)

    def _hold(self, offer: Offer, link: _IncomingLink) -> bool:
        """Keep an offer for a moment, if none expects it yet and there are not too many."""
        if self.receiver.is_reserved(offer.transfer) or len(self.early) >= MAX_EARLY:
            return False
        self.early[offer.transfer] = early = offer, link
        self._loop.call_later(EARLY_SECONDS, self._refuse_early, early)
        return True

    def _refuse_early(self, early: tuple[Offer, _IncomingLink]) -> None:
        offer, link = early
        if self.early.get(offer.transfer) is early:
            del self.early[offer.transfer]
            link.send(self._answers(offer, link))

    def _settle(self, transfer: int, arrived: Arrived | None) -> None:
        """End a lease, one way or the other; its staging is free, or the caller's."""
        self.receiver.release(transfer)
        self._carriers.pop(transfer, None)
        self._takers.pop(transfer, None)
        if (lease := self._leases.pop(transfer, None)) is not None:
            lease.cancel()
        future = self.expected.pop(transfer, None)
        if future is not None and not future.done():
            future.set_result(arrived)

    def add(self, link: _IncomingLink) -> None:
        self._links.add(link)

    def discard(self, link: _IncomingLink) -> None:
        """Discard a connection that is lost: its senders come back soon, or never."""
        self._links.discard(link)
        self.early = {id_: held for id_, held in self.early.items() if held[1] is not link}
        for transfer, carrier in self._carriers.items():
            if carrier is link:
                self._loop.call_later(RETURN_SECONDS, self._give_up, transfer, link)

    def _give_up(self, transfer: int, lost: _IncomingLink) -> None:
        if self._carriers.get(transfer) is lost:
            self._settle(transfer, None)


class _IncomingLink(SocketEnd):
    """One connection of a sender."""

    def __init__(self, server: TransferServer) -> None:
        self._server = server
        self.memory = PeerMemory()
        self._decoder = KVFrameDecoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                self.send(self._server.receive(self._brought(frame), self))
        except TransferError as error:
            logger.warning("a sender of KV was dropped: %s", error)
            self.drop()

    def _brought(self, frame: Frame) -> Frame | Copied:
        """Return the frame with the bytes that are beside it. Raises TransferError."""
        match frame:
            case Placed():
                return self.memory.segment(frame)
            case Paged():
                return self.memory.copied(frame)
            case _:
                return frame

    def send(self, answers: list[Control]) -> None:
        if self._transport is not None:
            for answer in answers:
                self._transport.writelines(encode(answer))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.memory.close()
        self._server.discard(self)


def _fields(frame: Frame | Copied) -> dict[str, str]:
    """Return what a log line says of whose transfer it is, where that is known."""
    if not isinstance(frame, Offer):
        return {}
    ids = {"request_id": frame.request_id}
    return ids if frame.trace is None else {**ids, "trace_id": frame.trace.trace_id}
