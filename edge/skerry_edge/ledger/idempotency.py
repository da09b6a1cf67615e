"""`Idempotency-Key`: a request that is sent again gets the answer of the first time.

The seed of such a request, unless its body has one, is derived from tenant and key: every edge of a
cluster computes the same answer, with nothing sent to any other. An edge that still has the
answer gives that. What is kept for a day is a hash of the request, so that a key that is used for
something else is refused, the request's row in the usage journal, so that it is counted once, and
the model's defaults of the time, with which it is computed again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from skerry.errors import IdempotencyMismatch, InvalidInput, Unavailable
from skerry_edge.database import DatabaseThread
from skerry_regions.drivers.sqlite_steps import added_column

HEADER = "idempotency-key"
REPLAYED_HEADER = "idempotent-replayed"
MAX_KEY_LENGTH = 255
TTL_SECONDS = 24 * 3600
MAX_TENANT_KEYS = 100_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    number INTEGER PRIMARY KEY, tenant TEXT NOT NULL, key TEXT NOT NULL, request BLOB NOT NULL,
    first_id TEXT NOT NULL, expires REAL NOT NULL, defaults BLOB NOT NULL DEFAULT x'',
    UNIQUE (tenant, key)
);
CREATE INDEX IF NOT EXISTS keys_expires ON keys (expires);
CREATE INDEX IF NOT EXISTS keys_tenant ON keys (tenant, number);
"""
STEPS = (
    _SCHEMA,
    added_column("keys", "first_id", "TEXT NOT NULL DEFAULT ''", value="'before-' || number"),
    added_column("keys", "defaults", "BLOB NOT NULL DEFAULT x''"),
)

logger = logging.getLogger(__name__)


class IdempotencyKey(Struct, frozen=True):
    """A key, and what it was sent with."""

    key: str
    request: bytes  # digest of path, query, model, residency zone and body

    def seed(self, secret: bytes, tenant: str) -> int:
        """Return 63 bits, the same wherever the secret is."""
        data = f"{tenant}\0{self.key}".encode()
        digest = hashlib.blake2b(data, key=secret, digest_size=8, person=b"idempotent seed")
        return int.from_bytes(digest.digest()) >> 1


class Claimed(Struct, frozen=True):
    """What a key's first request had."""

    first_id: str  # by which all requests with the key are counted
    defaults: bytes  # with which it was computed, where it stated none


def key_of(given: str, asked: Iterable[str], body: bytes) -> IdempotencyKey:
    """Return a request's key; `asked` and the body say what it was sent with.

    Raises `InvalidInput`.
    """
    if not (0 < len(given) <= MAX_KEY_LENGTH and given.isascii() and given.isprintable()):
        raise InvalidInput(
            f"Bad input: {HEADER} must be 1 to {MAX_KEY_LENGTH} printable ASCII characters",
            param=HEADER,
        )
    digest = hashlib.blake2b("".join(f"{part}\0" for part in asked).encode(), digest_size=32)
    digest.update(body)
    return IdempotencyKey(given, digest.digest())


def check_same(key: IdempotencyKey, first: bytes) -> None:
    """Raises `IdempotencyMismatch` when `first`, the digest of its first request, is another's."""
    if first != key.request:
        raise IdempotencyMismatch(
            f"The {HEADER} was used with another request within the last "
            f"{TTL_SECONDS / 3600:g} hours. Send a new key with a new request."
        )


class RequestKeys(Protocol):
    """The keys of a day and what they were used for. Every driver passes one conformance suite."""

    async def claim(
        self, tenant: str, key: IdempotencyKey, request_id: str, defaults: bytes = b""
    ) -> Claimed:
        """Use a key for a request that is computed with `defaults`; what the first request had.
        Raises `IdempotencyMismatch` if that was another one.

        With a store that cannot be used each request is the first, and none fails for it.
        """
        ...

    def close(self) -> None: ...


class IdempotencyKeys:
    """See `RequestKeys`; shared by the edges of a folder."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives Unix seconds."""
        self._database = DatabaseThread(path, STEPS, name="idempotency")
        self._clock = clock

    async def claim(
        self, tenant: str, key: IdempotencyKey, request_id: str, defaults: bytes = b""
    ) -> Claimed:
        now = self._clock()
        row = (tenant, key.key, key.request, request_id, now + TTL_SECONDS, defaults)
        claiming = self._database.write(lambda database: self._claim(database, row, now))
        try:
            request, first_id, first_defaults = await asyncio.wrap_future(claiming)
        except Unavailable as error:
            logger.warning("idempotency keys cannot be kept: %s", error)
            return Claimed(request_id, defaults)
        check_same(key, request)
        return Claimed(first_id, first_defaults or defaults)

    def close(self) -> None:
        self._database.close()

    def _claim(
        self,
        database: sqlite3.Connection,
        row: tuple[str, str, bytes, str, float, bytes],
        now: float,
    ) -> tuple[bytes, str, bytes]:
        """Return the request that has the key now: its digest, its id and its defaults."""
        tenant, key, *_ = row
        database.execute("DELETE FROM keys WHERE expires <= ?", (now,))
        database.execute(
            "INSERT INTO keys (tenant, key, request, first_id, expires, defaults)"
            " VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (tenant, key) DO NOTHING",
            row,
        )
        database.execute(
            "DELETE FROM keys WHERE tenant = ? AND number <= (SELECT number FROM keys"
            " WHERE tenant = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
            (tenant, tenant, MAX_TENANT_KEYS),
        )
        request, first_id, defaults = database.execute(
            "SELECT request, first_id, defaults FROM keys WHERE tenant = ? AND key = ?",
            (tenant, key),
        ).fetchone()
        return bytes(request), str(first_id), bytes(defaults)
