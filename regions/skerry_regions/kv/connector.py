"""A node's part in moving KV: engine blocks to transfers, and transfers to engine blocks.

A prefill node offers all names of the prompt's blocks at once, since they follow from the tokens,
and sends each block when its engine has sealed it. A node that only shares what it has cached sends
that, and computes nothing. Whoever expects KV adopts blocks as they come, waits for the commit, and
gives the request to its engine with what is left; when the lease lapses, or nothing came, it gives
the request alone, and the engine computes what it lacks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial

import numpy as np

from skerry.errors import InvalidInput
from skerry_core.config import BLOCK_SIZE
from skerry_core.device_pages import DevicePages
from skerry_core.engine.engine import Engine
from skerry_core.engine.worker import Errand
from skerry_core.runner import PageMover
from skerry_regions.address import Address, AddressError
from skerry_regions.kv.adoption import Adoption, Arrival, EarlyAdoption
from skerry_regions.kv.engine_transfers import CacheTransfer, PromptTransfer
from skerry_regions.kv.frames import Digest, Offer, TransferError
from skerry_regions.kv.outgoing import OutgoingTransfer
from skerry_regions.kv.receiver import Arrived, TransferReceiver
from skerry_regions.kv.shared_slots import SharedSlots
from skerry_regions.kv.transfer_server import TransferServer
from skerry_regions.trace_context import TraceContext
from skerry_regions.wire.link_auth import NO_CREDENTIALS, LinkCredentials
from skerry_regions.wire.protocol import HandOverFrom, HandOverTo, ShareKV, Submit

logger = logging.getLogger(__name__)

STAGING_BYTES = 256 << 20  # KV on its way in, over all transfers of a model
CREDIT_BYTES = 32 << 20  # of one transfer under way
SHARED_BYTES = 256 << 20  # cached KV on its way out, likewise
DEVICE_BYTES = 128 << 20  # of a device, for KV on its way either way; more goes through the host
MAX_SHARES = 256  # under way at once, of a model


class KVConnector:
    """KV that comes and goes, of one served model. Lives on the node's event loop."""

    def __init__(
        self,
        engine: Engine,
        between_steps: Callable[[Errand], None],
        credentials: LinkCredentials = NO_CREDENTIALS,
    ) -> None:
        """`between_steps` runs an errand on the engine's thread."""
        self._engine = engine
        self.between_steps = between_steps
        self._credentials = credentials
        self._adoption = Adoption(engine, between_steps)
        self._format = engine.runner.kv_format
        self.shares: set[CacheTransfer] = set()  # under way
        receiver = TransferReceiver(
            numeric_build=engine.runner.numeric_build,
            block_elements=int(np.prod(self._format.shape)),
            budget_bytes=STAGING_BYTES,
            credit_bytes=CREDIT_BYTES,
        )
        self.incoming = TransferServer(receiver, engine.exchange.held, lambda: self._pages)
        self._slots: SharedSlots | None = None  # once a peer on this host was sent something

    # --- out -------------------------------------------------------------------------------------

    def send(
        self, to: HandOverTo, request: Submit, engine_id: str, *, private: bool
    ) -> PromptTransfer:
        """Start offering a request's blocks, `private` ones as of a sequence in the engine.

        Raises InvalidInput on a wrong address.
        """
        tail_tokens = 0 if request.output_ids else len(request.prompt_ids) % BLOCK_SIZE
        names = self._engine.exchange.names(request, private=private)
        offer = self._offer(to, names, engine_id[:128], request.epoch, tail_tokens, request.trace)
        return PromptTransfer(self._outgoing(to, offer))

    def share(self, share: ShareKV) -> None:
        """Send the first blocks of a prompt to a node that goes on from there: those that are
        cached, and perhaps none. Raises InvalidInput on a wrong address."""
        if len(self.shares) >= MAX_SHARES:  # the peer computes when its lease lapses
            logger.warning("shares no KV: %d transfers are under way", MAX_SHARES)
            return
        room = SHARED_BYTES - sum(each.num_bytes for each in self.shares)
        num_cached = self._engine.pool.match(share.digests)
        num_blocks = min(num_cached, room // self._format.block_bytes)
        offer = self._offer(share.to, share.digests[:num_blocks])
        opens = partial(self._outgoing, share.to, offer)
        sharing = CacheTransfer(offer, opens, self.between_steps, share.lease_seconds)
        self.shares.add(sharing)
        sharing.when_over(lambda _: self.shares.discard(sharing))

    def end_shares(self) -> None:
        """Give up what was to be sent: the engine is gone."""
        for sharing in list(self.shares):
            sharing.end()

    def _outgoing(
        self,
        to: HandOverTo,
        offer: Offer,
        when_needed: Callable[[list[Digest]], None] = lambda _: None,
    ) -> OutgoingTransfer:
        """Raises InvalidInput on a wrong address."""
        address = _address(to)
        slots, pages = self._memory_towards(address)
        credentials = self._credentials.towards(to.machine)
        return OutgoingTransfer(
            address, offer, credentials, slots=slots, pages=pages, when_needed=when_needed
        )

    def _memory_towards(self, address: Address) -> tuple[SharedSlots | None, DevicePages | None]:
        """Return memory of the host, and of the device, for what is sent there; None where it
        cannot be had."""
        if not address.path:
            return None, None
        if self._slots is None:
            size = self._format.block_bytes
            with suppress(OSError):
                self._slots = SharedSlots(size, max(1, CREDIT_BYTES // size))
        return self._slots, self._pages

    @cached_property
    def _pages(self) -> DevicePages | None:
        """Return memory of the device, for what comes and what is sent; None where it cannot be
        had."""
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

    async def listen(self, address: Address) -> Address:
        """Start accepting transfers; return where. Raises what `link_auth.listen` raises."""
        return await self.incoming.listen(address, self._credentials)

    def expect(
        self, source: HandOverFrom, request: Submit, *, mixed_builds: bool
    ) -> asyncio.Future[Arrived | None]:
        """Return what will arrive for a request; None when it comes to nothing. Cancelling it ends
        the lease. Full blocks become prefix cache as they come: only the last one is waited for.

        Raises InvalidInput on a transfer that another request waits for.
        """
        try:
            return self.incoming.expect(
                source.transfer,
                source.token,
                source.lease_seconds,
                any_build=mixed_builds,
                take=EarlyAdoption(self._adoption, request),
            )
        except TransferError as error:
            raise InvalidInput(str(error), param="hand_over_from.transfer") from None

    def arrival(self, request: Submit, arrived: Arrived) -> Arrival:
        """Return the request with what arrived for it: KV, and the tokens already made of it."""
        return self._adoption.arrival(request, arrived)

    async def close(self) -> None:
        self.end_shares()
        await self.incoming.close()
        if self._slots is not None:
            self._slots.close()


def _address(to: HandOverTo) -> Address:
    """Return where to send. Raises InvalidInput on an address that cannot be."""
    try:
        return Address.parse(to.address)
    except AddressError as error:
        raise InvalidInput(str(error), param="hand_over_to.address") from None
