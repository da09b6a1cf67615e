"""Blocks that come from another node, as blocks of this node's engine."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from skerry_core.config import BLOCK_SIZE, KVDtype
from skerry_core.device_pages import DevicePage
from skerry_core.engine.engine import Engine
from skerry_core.engine.worker import Errand
from skerry_core.kv.canonical import kv_dtype
from skerry_core.request import KVBlock
from skerry_regions.kv.frames import Digest, Offer, Payload
from skerry_regions.kv.receiver import Arrived
from skerry_regions.wire.protocol import Submit


@dataclass(frozen=True, slots=True)
class Lineage:
    """A request as it goes on from KV of some numeric build."""

    request: Submit
    names: dict[Digest, Digest]  # of its prompt's blocks, in order: as offered, and as named here
    is_mixed: bool  # of another build than this node's


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a sequence starts from when its KV has come."""

    request: Submit  # tokens that were made of the KV are output of it
    blocks: tuple[KVBlock, ...]
    private: bool  # even blocks of the operator's prompts are named under the request's key


class Adoption:
    """Adopts what comes for the requests of one engine. `between_steps` runs an errand there."""

    def __init__(self, engine: Engine, between_steps: Callable[[Errand], None]) -> None:
        self._engine = engine
        self._between_steps = between_steps
        self._shape = engine.runner.kv_format.shape

    def arrival(self, request: Submit, arrived: Arrived) -> Arrival:
        """Return the request with what arrived for it: KV, and the tokens already made of it."""
        lineage = self.lineage(request, arrived.numeric_build)
        request, names = lineage.request, lineage.names
        if arrived.first_token is not None:
            output_ids = [*request.output_ids, *arrived.first_token.token_ids]
            request = msgspec.structs.replace(request, output_ids=output_ids)
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
        return Arrival(request, tuple(blocks), lineage.is_mixed)

    def lineage(self, request: Submit, numeric_build: str) -> Lineage:
        """Return the request as it goes on from KV of a build.

        Blocks of another build get names of their own, under a key that only requests of the same
        mixed lineage have: requests for this node's bits are never served from them.
        """
        exchange = self._engine.exchange
        names = exchange.names(request)
        if numeric_build == self._engine.runner.numeric_build:
            return Lineage(request, dict(zip(names, names, strict=True)), is_mixed=False)
        key = hashlib.blake2b(numeric_build.encode(), key=request.cache_key).digest()
        request = msgspec.structs.replace(request, cache_key=key)
        renamed = exchange.names(request, private=True)
        return Lineage(request, dict(zip(names, renamed, strict=True)), is_mixed=True)

    def block(
        self,
        name: Digest,
        data: Payload,
        dtype: KVDtype,
        checksum: int | None,
        num_tokens: int = BLOCK_SIZE,
    ) -> KVBlock:
        """Return bytes of a transfer as a block of this engine's shape."""
        if isinstance(data, DevicePage):
            return KVBlock(name, num_tokens, data, dtype, checksum)
        values = np.frombuffer(data, kv_dtype(dtype)).reshape(self._shape)
        return KVBlock(name, num_tokens, values, dtype, checksum)

    def adopt(self, names: list[Digest], block: KVBlock, adopted: Callable[[], None]) -> None:
        """Make one of a prompt's blocks prefix cache, then call `adopted` on the event loop."""
        loop = asyncio.get_running_loop()

        def errand(engine: Engine) -> None:
            engine.exchange.adopt_blocks(names, (block,))
            loop.call_soon_threadsafe(adopted)

        self._between_steps(errand)


class EarlyAdoption:
    """Makes a request's full blocks prefix cache while others are on their way; a `Take`."""

    def __init__(self, adoption: Adoption, request: Submit) -> None:
        self._adoption, self._request = adoption, request
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
            self._names = self._adoption.lineage(self._request, offer.numeric_build).names
        is_open = offer.tail_tokens and digest == offer.digests[-1]
        if is_open or digest not in self._names:  # comes with the rest
            return
        block = self._adoption.block(self._names[digest], data, offer.kv_dtype, checksum)
        self._adoption.adopt(list(self._names.values()), block, taken)
