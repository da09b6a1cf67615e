"""A node's part in moving KV: engine blocks to transfers, and transfers to engine blocks.

A prefill node offers all names of the prompt's blocks at once, since they follow from the tokens,
and sends each block when its engine has sealed it. A node that only shares what it has cached sends
that, and computes nothing. Whoever expects KV adopts blocks as they come, waits for the commit, and
gives the request to its engine with what is left; when the lease lapses, or nothing came, it gives
the request alone, and the engine computes what it lacks.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import numpy as np

from skerry.errors import InvalidInput
from skerry_core.config import BLOCK_SIZE, KVDtype
from skerry_core.device_pages import DevicePage, DevicePages
from skerry_core.engine.engine import Engine
from skerry_core.engine.worker import Errand
from skerry_core.kv.canonical import kv_dtype
from skerry_core.request import KVBlock, Output, Request
from skerry_core.runner import PageMover
from skerry_regions.address import Address, AddressError
from skerry_regions.kv.frames import Digest, Made, Offer, Payload, TransferError
from skerry_regions.kv.shared_slots import SharedSlots
from skerry_regions.kv.sockets import OutgoingTransfer, TransferServer
from skerry_regions.kv.transfer import Arrived, Receiver
from skerry_regions.trace_context import TraceContext
from skerry_regions.wire.link_auth import LinkKey
from skerry_regions.wire.protocol import HandOverFrom, HandOverTo, ShareKV

logger = logging.getLogger(__name__)

STAGING_BYTES = 256 << 20  # KV on its way in, over all transfers of a model
CREDIT_BYTES = 32 << 20  # of one transfer under way
SHARED_BYTES = 256 << 20  # cached KV on its way out, likewise
DEVICE_BYTES = 128 << 20  # of a device, for KV on its way either way; more goes through the host
MAX_SHARES = 256  # under way at once, of a model

BetweenSteps = Callable[[Errand], None]
"""Has something done to the engine on its thread; see `Worker.between_steps`."""


class KVDesk:
    """KV that comes and goes, of one served model. Lives on the node's event loop."""

    def __init__(self, engine: Engine, between_steps: BetweenSteps) -> None:
        self._engine = engine
        self.between_steps = between_steps
        self._format = engine.runner.kv_format
        self._shares: set[Share] = set()
        elements = int(np.prod(self._format.shape))
        receiver = Receiver(
            numeric_build=engine.runner.numeric_build,
            block_elements=elements,
            budget_bytes=STAGING_BYTES,
            credit_bytes=CREDIT_BYTES,
        )
        self.key: LinkKey | None = None  # of links over TCP; set before the first transfer
        self.incoming = TransferServer(receiver, engine.handover.held, lambda: self._pages)
        self._slots: SharedSlots | None = None  # once a peer on this host was sent something

    # --- out -------------------------------------------------------------------------------------

    def send(
        self, to: HandOverTo, request: Request, epoch: int, trace: TraceContext | None = None
    ) -> Outgoing:
        """Start offering a request's blocks. Raises InvalidInput on a wrong address."""
        tail_tokens = 0 if request.output_ids else len(request.prompt_ids) % BLOCK_SIZE
        names = self._engine.handover.names(request)
        offer = self._offer(to, names, request.id[:128], epoch, tail_tokens, trace)
        address = _address(to)
        slots, pages = self._memory_towards(address)
        return Outgoing(OutgoingTransfer(address, offer, self.key, slots=slots, pages=pages))

    def share(self, share: ShareKV) -> None:
        """Send the first blocks of a prompt to a node that goes on from there: those that are
        cached, and perhaps none. Raises InvalidInput on a wrong address."""
        address, digests = _address(share.to), share.digests
        if len(self._shares) >= MAX_SHARES:  # the peer computes when its lease lapses
            logger.warning("shares no KV: %d transfers are under way", MAX_SHARES)
            return
        room = SHARED_BYTES - sum(each.num_bytes for each in self._shares)
        num_blocks = min(self._engine.pool.match(digests), room // self._format.block_bytes)
        offer = self._offer(share.to, digests[:num_blocks])
        slots, pages = self._memory_towards(address)
        sharing = Share(
            address, offer, self.between_steps, share.lease_seconds, self.key, slots, pages
        )
        self._shares.add(sharing)
        sharing.when_over(lambda _: self._shares.discard(sharing))

    @property
    def num_shares(self) -> int:
        """Shares under way."""
        return len(self._shares)

    def end_shares(self) -> None:
        """The engine is gone, and with it what was to be sent."""
        for sharing in list(self._shares):
            sharing.end()

    def _memory_towards(self, address: Address) -> tuple[SharedSlots | None, DevicePages | None]:
        """Memory of the host, and of the device, for what is sent there; None where it cannot be
        had."""
        if not address.path:
            return None, None
        if self._slots is None:
            size = self._format.block_bytes
            with suppress(OSError):
                self._slots = SharedSlots(size, max(1, CREDIT_BYTES // size))
        return self._slots, self._pages

    @cached_property
    def _pages(self) -> DevicePages | None:
        """Memory of the device, for what comes and what is sent; None where it cannot be had."""
        runner = self._engine.runner
        if not isinstance(runner, PageMover):
            return None
        try:
            return runner.open_pages(max(1, DEVICE_BYTES // self._format.block_bytes))
        except OSError as error:
            logger.info("KV goes through the host: %s", error)
            return None

    def _offer(
        self,
        to: HandOverTo,
        digests: list[Digest],
        request_id: str = "",
        epoch: int = 0,
        tail_tokens: int = 0,
        trace: TraceContext | None = None,
    ) -> Offer:
        return Offer(
            transfer=to.transfer,
            token=to.token,
            request_id=request_id,
            epoch=epoch,
            numeric_build=self._engine.runner.numeric_build,
            kv_dtype=self._format.dtype,
            block_bytes=self._format.block_bytes,
            num_layers=self._format.num_layers,
            digests=digests,
            tail_tokens=tail_tokens,
            trace=trace,
        )

    # --- in --------------------------------------------------------------------------------------

    def expect(
        self, source: HandOverFrom, request: Request, *, mixed_builds: bool
    ) -> asyncio.Future[Arrived | None]:
        """What will arrive for a request; None when it comes to nothing. Cancelling it gives the
        lease up. Full blocks become prefix cache as they come: only the last one is waited for.

        Raises InvalidInput on a transfer that another request waits for.
        """
        try:
            return self.incoming.expect(
                source.transfer,
                source.token,
                source.lease_seconds,
                any_build=mixed_builds,
                take=_Adopting(self, request),
            )
        except TransferError as error:
            raise InvalidInput(str(error), param="hand_over_from.transfer") from None

    def with_arrived(self, request: Request, arrived: Arrived) -> Request:
        """The request with what arrived for it: KV, and the tokens already made of it."""
        request, names = self.in_lineage(request, arrived.numeric_build)
        if arrived.made is not None:
            request = replace(request, output_ids=(*request.output_ids, *arrived.made.token_ids))
        last = next(reversed(names), b"")
        blocks = (
            self.block(
                names[name],
                data,
                arrived.kv_dtype,
                arrived.checksums.get(name),
                arrived.tail_tokens if arrived.tail_tokens and name == last else BLOCK_SIZE,
            )
            for name, data in arrived.blocks
            if name in names
        )
        return replace(request, kv=tuple(blocks))

    def in_lineage(
        self, request: Request, numeric_build: str
    ) -> tuple[Request, dict[Digest, Digest]]:
        """The request as it goes on from KV of a build, and what the blocks of its prompt, in
        order, are called then.

        Blocks of another build get names of their own, under a key that only requests of the same
        mixed lineage have: whoever asks for this node's bits is never served from them.
        """
        names = self._engine.handover.names(request)
        if numeric_build == self._engine.runner.numeric_build:
            return request, dict(zip(names, names, strict=True))
        lineage = hashlib.blake2b(numeric_build.encode(), key=request.cache_key)
        request = replace(request, cache_key=lineage.digest(), private_blocks=True)
        return request, dict(zip(names, self._engine.handover.names(request), strict=True))

    def block(
        self,
        name: Digest,
        data: Payload,
        dtype: KVDtype,
        checksum: int | None,
        num_tokens: int = BLOCK_SIZE,
    ) -> KVBlock:
        """Bytes of a transfer as a block of this engine's shape."""
        if isinstance(data, DevicePage):
            return KVBlock(name, num_tokens, data, dtype, checksum)
        values = np.frombuffer(data, kv_dtype(dtype)).reshape(self._format.shape)
        return KVBlock(name, num_tokens, values, dtype, checksum)

    async def close(self) -> None:
        self.end_shares()
        await self.incoming.close()
        if self._slots is not None:
            self._slots.close()


class _Adopting:
    """Makes a request's blocks prefix cache while others are on their way; a `Take`."""

    def __init__(self, desk: KVDesk, request: Request) -> None:
        self._desk, self._request = desk, request
        self._loop = asyncio.get_running_loop()
        self._names: dict[Digest, Digest] = {}  # of the prompt's blocks, once something came

    def __call__(
        self,
        offer: Offer,
        digest: Digest,
        data: Payload,
        checksum: int | None,
        taken: Callable[[], None],
    ) -> None:
        if not self._names:
            _, self._names = self._desk.in_lineage(self._request, offer.numeric_build)
        is_open = offer.tail_tokens and digest == offer.digests[-1]
        if is_open or digest not in self._names:  # comes with the rest
            return
        block = self._desk.block(self._names[digest], data, offer.kv_dtype, checksum)
        names = list(self._names.values())

        def adopt(engine: Engine) -> None:
            engine.handover.adopt_blocks(names, (block,))
            self._loop.call_soon_threadsafe(taken)

        self._desk.between_steps(adopt)


class Outgoing:
    """One prompt's KV on its way to its decode node."""

    def __init__(self, transfer: OutgoingTransfer) -> None:
        self._transfer = transfer
        self.is_whole = False  # everything to send is known, the first token included

    def push(self, output: Output) -> None:
        """Pass on what a step made: its blocks, and with the first token the commit."""
        for block in output.kv:
            self._transfer.seal(block.digest, _payload_of(block), block.checksum)
        if output.token_ids and not self.is_whole:
            self.is_whole = True
            logprobs = [(entry.logprob, list(entry.top)) for entry in output.logprobs]
            self._transfer.finish(Made(list(output.token_ids), logprobs or None))

    def pages(self) -> DevicePages | None:
        """Where blocks may stay on the device to be pushed now. From any thread."""
        return self._transfer.pages

    @property
    def sent(self) -> tuple[int, int]:
        """Blocks that left so far, and their bytes."""
        return self._transfer.sent

    def when_over(self, callback: Callable[[bool], None]) -> None:
        """Call it once nothing more will be sent: True when the peer took everything, or wants
        none of it."""
        self._transfer.when_over(callback)

    def end(self) -> None:
        """Nobody wants it any more. Idempotent."""
        self._transfer.cancel()


class Share:
    """Cached blocks on their way to another node, which knows what it lacks of them.

    They leave the engine's memory once the peer has said what it needs. When one of them has been
    evicted since the offer, the transfer is called off: the peer computes.
    """

    def __init__(
        self,
        address: Address,
        offer: Offer,
        between_steps: BetweenSteps,
        lease_seconds: float,
        key: LinkKey | None,
        slots: SharedSlots | None,
        pages: DevicePages | None,
    ) -> None:
        self._between_steps = between_steps
        self._loop = asyncio.get_running_loop()
        self.num_bytes = len(offer.digests) * offer.block_bytes  # at most
        self._num_missing = 0  # blocks that the peer needs and that were not copied yet
        self._transfer = OutgoingTransfer(
            address, offer, key, slots=slots, pages=pages, when_needed=self._send
        )
        self._lease = self._loop.call_later(lease_seconds, self.end)
        self._transfer.when_over(lambda _: self._close())

    def when_over(self, callback: Callable[[bool], None]) -> None:
        """As `Outgoing.when_over`."""
        self._transfer.when_over(callback)

    def end(self) -> None:
        """Call it off. Idempotent."""
        self._transfer.cancel()

    def _close(self) -> None:
        """However it ended: what was not copied yet need not be, and is no longer pinned."""
        self._lease.cancel()
        if self._num_missing:
            self._between_steps(lambda engine: engine.exports.remove(self._copied))

    def _send(self, digests: list[Digest]) -> None:
        self._num_missing = len(digests)
        if digests:
            pages = self._transfer.pages
            self._between_steps(lambda engine: engine.exports.add(digests, self._copied, pages))
        else:
            self._transfer.finish(None)

    def _copied(self, blocks: tuple[KVBlock, ...], is_last: bool) -> None:
        """On the engine's thread."""
        self._loop.call_soon_threadsafe(self._pass_on, blocks, is_last)

    def _pass_on(self, blocks: tuple[KVBlock, ...], is_last: bool) -> None:
        for block in blocks:
            self._transfer.seal(block.digest, _payload_of(block), block.checksum)
        self._num_missing -= len(blocks)
        if is_last and self._num_missing:
            self.end()
        elif is_last:
            self._transfer.finish(None)


def _address(to: HandOverTo) -> Address:
    """Raises InvalidInput on one that cannot be."""
    try:
        return Address.parse(to.address)
    except AddressError as error:
        raise InvalidInput(str(error), param="hand_over_to.address") from None


def _payload_of(block: KVBlock) -> Payload:
    if isinstance(block.data, DevicePage):
        return block.data
    return np.ascontiguousarray(block.data).reshape(-1).view(np.uint8).data
