"""Idempotency keys that every edge of a zone finds: a stream of JetStream, a message each.

Whoever creates a key's message has the first request; who cannot reads it at the stream's leader.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections import Counter

import msgspec
from msgspec import Struct

from skerry.errors import Unavailable
from skerry_edge.ledger.idempotency import (
    MAX_TENANT_KEYS,
    Claimed,
    IdempotencyKey,
    check_same,
)
from skerry_regions.drivers.jetstream.specs import key_of
from skerry_regions.drivers.jetstream.stream import KeyedStream, RevisionConflict, Write

CLAIM_SECONDS = 2.0  # that a request waits to know whether it is the first
BOUNDED_EACH = 16  # of a tenant's bound
KNOWN_TENANTS = 10_000
VERSION = 1

logger = logging.getLogger(__name__)


class FirstRequest(Struct, frozen=True, array_like=True):
    """What lies under a key."""

    version: int
    key: str
    request: bytes  # digest, see `IdempotencyKey`
    first_id: str
    defaults: bytes


encode_first = msgspec.msgpack.Encoder().encode
decode_first = msgspec.msgpack.Decoder(FirstRequest).decode


class NatsKeys:
    """See `RequestKeys`. Lives on the loop of its connection."""

    def __init__(self, stream: KeyedStream, *, max_tenant_keys: int = MAX_TENANT_KEYS) -> None:
        self._stream = stream
        self._max_tenant_keys = max_tenant_keys
        self._claimed = Counter[str]()  # by tenant, since its keys were bounded last

    async def claim(
        self, tenant: str, key: IdempotencyKey, request_id: str, defaults: bytes = b""
    ) -> Claimed:
        own = FirstRequest(VERSION, key.key, key.request, request_id, defaults)
        try:
            first = await self._first(key_name(tenant, key.key), own)
            if first is own:
                await self._bound(tenant)
        except Unavailable as error:
            logger.warning("idempotency keys cannot be kept: %s", error)
            return Claimed(request_id, defaults)
        check_same(key, first.request)
        return Claimed(first.first_id, first.defaults or defaults)

    def close(self) -> None:
        """Do nothing: the connection is its owner's."""

    async def _first(self, key: str, own: FirstRequest) -> FirstRequest:
        """Return the request that has the key. Raises `Unavailable`."""
        try:
            await self._stream.write(
                Write(key, encode_first(own), expected=0), seconds=CLAIM_SECONDS
            )
        except RevisionConflict as conflict:
            if conflict.found is None:
                raise Unavailable("The key expired just now.") from None
            return decode_first(conflict.found.data)
        return own

    async def _bound(self, tenant: str) -> None:
        """Let a tenant's oldest keys go, now and then."""
        self._claimed[tenant] += 1
        if self._claimed[tenant] * BOUNDED_EACH >= self._max_tenant_keys:
            with contextlib.suppress(Unavailable):  # then the next one does
                await self._stream.delete(f"{key_of(tenant)}.>", keep=self._max_tenant_keys)
                del self._claimed[tenant]
        elif len(self._claimed) > KNOWN_TENANTS:
            self._claimed.clear()


def key_name(tenant: str, key: str) -> str:
    """Return where a tenant's key lies."""
    return key_of(tenant, hashlib.blake2b(key.encode(), digest_size=16).hexdigest())
