"""Blocks of an engine on their way to another node: of a prompt it computes, or of its cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from skerry_core.device_pages import DevicePage, DevicePages
from skerry_core.engine.worker import Errand
from skerry_core.request import KVBlock, Output
from skerry_regions.kv.frames import Digest, FirstToken, Offer, Payload
from skerry_regions.kv.outgoing import LastWord, OutgoingTransfer


class PromptTransfer:
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
            logprobs = list(output.logprobs) or None
            ids = list(output.token_ids)
            self._transfer.finish(FirstToken(ids, logprobs, output.withheld, output.led))

    def pages(self) -> DevicePages | None:
        """Return where blocks may stay on the device to be pushed now. From any thread."""
        return self._transfer.pages

    @property
    def sent(self) -> tuple[int, int]:
        """Return blocks that left so far, and their bytes."""
        return self._transfer.sent

    def when_over(self, callback: Callable[[LastWord], None]) -> None:
        """Call it once nothing more will be sent, with the peer's last word."""
        self._transfer.when_over(callback)

    def end(self) -> None:
        """Give it up. Idempotent."""
        self._transfer.cancel()


class CacheTransfer:
    """Cached blocks on their way to another node, which knows what it lacks of them.

    They leave the engine's memory once the peer has said what it needs. When one of them has been
    evicted since the offer, the transfer is called off: the peer computes.
    """

    def __init__(
        self,
        offer: Offer,
        opens: Callable[[Callable[[list[Digest]], None]], OutgoingTransfer],
        between_steps: Callable[[Errand], None],
        lease_seconds: float,
    ) -> None:
        """`opens` opens the transfer of what is offered, by what is called when blocks of it are
        needed."""
        self._between_steps = between_steps
        self._loop = asyncio.get_running_loop()
        self.num_bytes = len(offer.digests) * offer.block_bytes  # at most
        self._num_missing = 0  # blocks that the peer needs and that were not copied yet
        self._transfer = opens(self._send)
        self._lease = self._loop.call_later(lease_seconds, self.end)
        self._transfer.when_over(lambda _: self._close())

    def when_over(self, callback: Callable[[LastWord], None]) -> None:
        """See `PromptTransfer.when_over`."""
        self._transfer.when_over(callback)

    def end(self) -> None:
        """Give it up. Idempotent."""
        self._transfer.cancel()

    def _close(self) -> None:
        """Unpin what was not copied yet, however it ended: it need not be copied any more."""
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
        """Take what was copied, on the engine's thread."""
        self._loop.call_soon_threadsafe(self._pass_on, blocks, is_last)

    def _pass_on(self, blocks: tuple[KVBlock, ...], is_last: bool) -> None:
        for block in blocks:
            self._transfer.seal(block.digest, _payload_of(block), block.checksum)
        self._num_missing -= len(blocks)
        if is_last and self._num_missing:
            self.end()
        elif is_last:
            self._transfer.finish(None)


def _payload_of(block: KVBlock) -> Payload:
    if isinstance(block.data, DevicePage):
        return block.data
    return np.ascontiguousarray(block.data).reshape(-1).view(np.uint8).data
