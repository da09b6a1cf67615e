"""A node's part in handing KV over: engine blocks to transfers, and transfers to engine blocks.

The prefill node offers all names of the prompt's blocks at once, since they follow from the tokens,
and sends each block when its engine has sealed it. The decode node waits for the commit, then gives
the request to its engine together with the blocks; when the lease lapses it gives the request
alone, and the engine computes what it lacks.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from skerry.errors import InvalidInput
from skerry_core.config import BLOCK_SIZE
from skerry_core.engine import Engine
from skerry_core.kv import kv_dtype
from skerry_core.request import KVBlock, Output, Request
from skerry_regions.address import Address, AddressError
from skerry_regions.protocol import HandOverFrom, HandOverTo
from skerry_regions.transfer import Arrived, Made, Offer, Receiver
from skerry_regions.transfer_link import OutgoingTransfer, TransferServer

STAGING_BYTES = 256 << 20  # KV on its way in, over all transfers of a model
CREDIT_BYTES = 32 << 20  # of one transfer under way


class KVDesk:
    """Hand-over for one served model. Lives on the node's event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._format = engine.runner.kv_format
        elements = int(np.prod(self._format.shape))
        receiver = Receiver(
            numeric_build=engine.runner.numeric_build,
            block_elements=elements,
            budget_bytes=STAGING_BYTES,
            credit_bytes=CREDIT_BYTES,
        )
        self.incoming = TransferServer(receiver, engine.handover.held)

    # --- prefill side ----------------------------------------------------------------------------

    def send(self, to: HandOverTo, request: Request, epoch: int) -> Outgoing:
        """Start offering a request's blocks. Raises InvalidInput on a wrong address."""
        try:
            address = Address.parse(to.address)
        except AddressError as error:
            raise InvalidInput(str(error), param="hand_over_to.address") from None
        offer = Offer(
            transfer=to.transfer,
            token=to.token,
            request_id=request.id[:128],
            epoch=epoch,
            numeric_build=self._engine.runner.numeric_build,
            kv_dtype=self._format.dtype,
            block_bytes=self._format.block_bytes,
            num_layers=self._format.num_layers,
            digests=self._engine.handover.names(request),
            tail_tokens=0 if request.output_ids else len(request.prompt_ids) % BLOCK_SIZE,
        )
        return Outgoing(OutgoingTransfer(address, offer))

    # --- decode side -----------------------------------------------------------------------------

    def expect(self, source: HandOverFrom) -> asyncio.Future[Arrived | None]:
        """What will arrive; None when it comes to nothing. Cancelling it gives the lease up."""
        return self.incoming.expect(
            source.transfer, source.token, source.lease_seconds, any_build=source.any_build
        )

    def with_arrived(self, request: Request, arrived: Arrived) -> Request:
        """The request with what arrived for it: KV, and the tokens already made of it.

        Blocks of another build get names of their own, under a key that only requests of the same
        mixed lineage have: whoever asks for this node's bits is never served from them.
        """
        names = self._engine.handover.names(request)
        told = {name: name for name in names}
        if arrived.numeric_build != self._engine.runner.numeric_build:
            lineage = hashlib.blake2b(arrived.numeric_build.encode(), key=request.cache_key)
            request = replace(request, cache_key=lineage.digest(), private_blocks=True)
            told = dict(zip(names, self._engine.handover.names(request), strict=True))
        if arrived.made is not None:
            request = replace(request, output_ids=(*request.output_ids, *arrived.made.token_ids))
        blocks = tuple(
            KVBlock(
                told[name],
                arrived.tail_tokens if arrived.tail_tokens and name == names[-1] else BLOCK_SIZE,
                np.frombuffer(data, kv_dtype(arrived.kv_dtype)).reshape(self._format.shape),
                arrived.kv_dtype,
            )
            for name, data in arrived.blocks
            if name in told
        )
        return replace(request, kv=blocks)

    async def close(self) -> None:
        await self.incoming.close()


class Outgoing:
    """One prompt's KV on its way to its decode node."""

    def __init__(self, transfer: OutgoingTransfer) -> None:
        self._transfer = transfer
        self.is_whole = False  # everything to send is known, the first token included

    def push(self, output: Output) -> None:
        """Pass on what a step made: its blocks, and with the first token the commit."""
        for block in output.kv:
            self._transfer.seal(block.digest, _bytes_of(block))
        if output.token_ids and not self.is_whole:
            self.is_whole = True
            logprobs = [(entry.logprob, list(entry.top)) for entry in output.logprobs]
            self._transfer.finish(Made(list(output.token_ids), logprobs or None))

    def when_over(self, callback: Callable[[bool], None]) -> None:
        """Call it once nothing more will be sent: True when the peer took everything, or wants
        none of it."""
        self._transfer.when_over(callback)

    def end(self) -> None:
        """Nobody wants it any more. Idempotent."""
        self._transfer.cancel()


def _bytes_of(block: KVBlock) -> memoryview:
    return np.ascontiguousarray(block.data).reshape(-1).view(np.uint8).data
