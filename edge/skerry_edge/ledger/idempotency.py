"""`Idempotency-Key`: a request that is sent again gets the answer of the first time.

The seed of such a request, unless its body has one, is derived from tenant and key: every edge of a
cluster computes the same answer, with nothing asked of any other. An edge that still has the
answer gives that. What is kept for a day is a hash of the request, so that a key that is used for
something else is told, and the request's row in the usage journal, so that it is counted once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from starlette.requests import Request

from skerry.errors import IdempotencyMismatch, InvalidInput, Unavailable
from skerry_edge.database import DatabaseThread
from skerry_edge.envelopes import MODEL_HEADER

HEADER = "idempotency-key"
REPLAYED_HEADER = "idempotent-replayed"
MAX_KEY_LENGTH = 255
TTL_SECONDS = 24 * 3600
MAX_TENANT_KEYS = 100_000
_SCOPE_KEY = "request_digest"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    number INTEGER PRIMARY KEY, tenant TEXT NOT NULL, key TEXT NOT NULL, request BLOB NOT NULL,
    first_id TEXT NOT NULL, expires REAL NOT NULL, UNIQUE (tenant, key)
);
CREATE INDEX IF NOT EXISTS keys_expires ON keys (expires);
CREATE INDEX IF NOT EXISTS keys_tenant ON keys (tenant, number);
"""

logger = logging.getLogger(__name__)


class IdempotencyKey(Struct, frozen=True):
    """A key, and what it was sent with."""

    key: str
    request: bytes  # digest of path, query, model, residency zone and body

    def seed(self, secret: bytes, tenant: str) -> int:
        """63 bits, the same wherever the secret is."""
        data = f"{tenant}\0{self.key}".encode()
        digest = hashlib.blake2b(data, key=secret, digest_size=8, person=b"idempotent seed")
        return int.from_bytes(digest.digest()) >> 1


def note_body(request: Request, body: bytes) -> None:
    """Remember what a request with a key asks for."""
    if HEADER in request.headers:
        scope = request.scope
        asked = (
            scope["path"],
            scope["query_string"].decode("latin-1"),
            request.headers.get(MODEL_HEADER, ""),
            scope["residency"] or "",
        )
        digest = hashlib.blake2b("".join(f"{part}\0" for part in asked).encode(), digest_size=32)
        digest.update(body)
        request.scope[_SCOPE_KEY] = digest.digest()


def key_of(request: Request) -> IdempotencyKey | None:
    """The request's key, if it has one; its body must have been read. Raises `InvalidInput`."""
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if not (0 < len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable()):
        raise InvalidInput(
            f"Bad input: {HEADER} must be 1 to {MAX_KEY_LENGTH} printable ASCII characters",
            param=HEADER,
        )
    return IdempotencyKey(key, request.scope[_SCOPE_KEY])


class IdempotencyKeys:
    """The keys of a day and what they were used for, shared by the edges of a folder."""

    def __init__(
        self,
        path: Path,
        *,
        ttl_seconds: float = TTL_SECONDS,
        max_tenant_keys: int = MAX_TENANT_KEYS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives Unix seconds."""
        self._database = DatabaseThread(path, _SCHEMA, name="idempotency")
        self._ttl_seconds = ttl_seconds
        self._max_tenant_keys = max_tenant_keys
        self._clock = clock

    async def claim(self, tenant: str, key: IdempotencyKey, request_id: str) -> str:
        """Use a key for a request; the id of the first request that had it, by which all are
        counted. Raises `IdempotencyMismatch` if that was another one.

        With a file that cannot be used each request is the first, and none fails for it.
        """
        now = self._clock()
        row = (tenant, key.key, key.request, request_id, now + self._ttl_seconds)
        claiming = self._database.write(lambda database: self._claim(database, row, now))
        try:
            request, first_id = await asyncio.wrap_future(claiming)
        except Unavailable as error:
            logger.warning("idempotency keys cannot be kept: %s", error)
            return request_id
        if request != key.request:
            raise IdempotencyMismatch(
                f"The {HEADER} was used with another request within the last "
                f"{self._ttl_seconds / 3600:g} hours. Send a new key with a new request."
            )
        return first_id

    def close(self) -> None:
        self._database.close()

    def _claim(
        self, database: sqlite3.Connection, row: tuple[str, str, bytes, str, float], now: float
    ) -> tuple[bytes, str]:
        """The request that has the key now: its digest and its id."""
        tenant, key, *_ = row
        database.execute("DELETE FROM keys WHERE expires <= ?", (now,))
        database.execute(
            "INSERT INTO keys (tenant, key, request, first_id, expires) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (tenant, key) DO NOTHING",
            row,
        )
        database.execute(
            "DELETE FROM keys WHERE tenant = ? AND number <= (SELECT number FROM keys"
            " WHERE tenant = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
            (tenant, tenant, self._max_tenant_keys),
        )
        request, first_id = database.execute(
            "SELECT request, first_id FROM keys WHERE tenant = ? AND key = ?", (tenant, key)
        ).fetchone()
        return bytes(request), str(first_id)
