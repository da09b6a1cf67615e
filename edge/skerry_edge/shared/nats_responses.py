"""Stored responses that every edge of a zone finds: a stream of JetStream.

Its `max_age` is the time for which they are kept, and what is oldest goes first when it is full.
What one tenant may keep holds about: an edge that wrote an eighth of it lets as many of the
tenant's messages stay as make it up by the sizes that this edge has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from dataclasses import dataclass

from skerry.errors import Unavailable
from skerry_edge.ledger.responses_store import (
    MAX_TENANT_BYTES,
    StoredResponse,
    decode_stored,
    encode_stored,
)
from skerry_regions.drivers.jetstream.specs import key_of
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.jetstream.values import PIECE_BYTES, read_value, write_value

PUT_SECONDS = 2.0  # that an answer waits for its copy
BOUNDED_EACH = 8  # of a tenant's bound
KNOWN_TENANTS = 10_000


@dataclass(slots=True)
class Written:
    """What this edge wrote of a tenant."""

    messages: int = 0
    bytes: int = 0
    unbounded: int = 0  # bytes since room was made last


class NatsResponses:
    """See `Responses`. Lives on the loop of its connection."""

    def __init__(self, stream: KeyedStream, *, max_tenant_bytes: int = MAX_TENANT_BYTES) -> None:
        self.stream = stream
        self._max_tenant_bytes = max_tenant_bytes
        self._written = OrderedDict[str, Written]()  # by tenant, the one of late at the end

    async def put(self, tenant: str, id: str, stored: StoredResponse) -> bool:
        document = encode_stored(stored)
        if len(document) > self._max_tenant_bytes:
            return False
        await write_value(self.stream, key_of(tenant, id), document, seconds=PUT_SECONDS)
        await self._make_room(tenant, len(document))
        return True

    async def get(self, tenant: str, id: str) -> StoredResponse | None:
        document = await read_value(self.stream, key_of(tenant, id))
        return None if document is None else await asyncio.to_thread(decode_stored, document)

    async def delete(self, tenant: str, id: str) -> bool:
        key = key_of(tenant, id)
        if await self.stream.last(key) is None:
            return False
        await self.stream.delete(key)  # without its head it is not there
        await self.stream.delete(f"{key}.>")
        return True

    def close(self) -> None:
        """Do nothing: the connection is its owner's."""

    async def _make_room(self, tenant: str, size: int) -> None:
        """Let the oldest go where the tenant has written so much that there may be too many."""
        written = self._written.setdefault(tenant, Written())
        self._written.move_to_end(tenant)
        if len(self._written) > KNOWN_TENANTS:
            self._written.popitem(last=False)
        written.messages += 1 if size <= PIECE_BYTES else 1 - -size // PIECE_BYTES
        written.bytes += size
        written.unbounded += size
        if written.unbounded * BOUNDED_EACH >= self._max_tenant_bytes:
            keep = max(1, self._max_tenant_bytes * written.messages // written.bytes)
            with contextlib.suppress(Unavailable):  # then the next one makes it
                await self.stream.delete(f"{key_of(tenant)}.>", keep=keep)
                written.unbounded = 0
