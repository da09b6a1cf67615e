"""Conversations that `previous_response_id` may go on from, bounded per tenant: their contract, and
the SQLite file that the edges of one home share.

They are a convenience for a stated time, not a record: what is oldest goes first when it is full.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from skerry.wire import Message
from skerry_edge.database import make_room
from skerry_regions.drivers.sqlite_file import SqliteFile

TTL_SECONDS = 24 * 3600.0
MAX_BYTES = 256 << 20  # of all tenants
MAX_TENANT_BYTES = 32 << 20

SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY, tenant TEXT NOT NULL, id TEXT NOT NULL, expires REAL NOT NULL,
    size INTEGER NOT NULL, document BLOB NOT NULL, UNIQUE (tenant, id)
);
CREATE INDEX IF NOT EXISTS responses_expires ON responses (expires);
"""


class StoredResponse(Struct):
    """An answer, and the conversation up to and including it, without instructions."""

    response: msgspec.Raw  # JSON, as it was sent
    messages: list[Message]
    residency: str | None = None  # zone that the conversation is bound to
    ids: list[str] = []  # of the conversation's items; none in documents of before


encode_stored = msgspec.json.Encoder().encode
decode_stored = msgspec.json.Decoder(StoredResponse).decode


class Responses(Protocol):
    """Stored responses by tenant and id; none finds another's. Every driver passes one conformance
    suite. Calls raise `Unavailable` when the store cannot be used."""

    async def put(self, tenant: str, id: str, stored: StoredResponse) -> bool:
        """Keep a response. False if it is larger than all a tenant may keep."""
        ...

    async def get(self, tenant: str, id: str) -> StoredResponse | None:
        """Return a tenant's response, unless it expired or had to go."""
        ...

    async def delete(self, tenant: str, id: str) -> bool:
        """Forget a response. False if there is none."""
        ...

    def close(self) -> None: ...


class ResponseStore:
    """See `Responses`. The file is opened when it is first needed; calls run on threads, one at a
    time."""

    def __init__(
        self,
        path: Path,
        *,
        ttl_seconds: float = TTL_SECONDS,
        max_bytes: int = MAX_BYTES,
        max_tenant_bytes: int = MAX_TENANT_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives Unix seconds: what is stored outlives the process."""
        self._file = SqliteFile(path, (SCHEMA,), is_durable=False)
        self._ttl_seconds = ttl_seconds
        self._max_bytes = max_bytes
        self._max_tenant_bytes = max_tenant_bytes
        self._clock = clock

    async def put(self, tenant: str, id: str, stored: StoredResponse) -> bool:
        return await asyncio.to_thread(self._put, tenant, id, encode_stored(stored))

    async def get(self, tenant: str, id: str) -> StoredResponse | None:
        return await asyncio.to_thread(self._get, tenant, id)

    async def delete(self, tenant: str, id: str) -> bool:
        return await asyncio.to_thread(self._delete, tenant, id)

    def close(self) -> None:
        self._file.close()

    def _put(self, tenant: str, id: str, document: bytes) -> bool:
        if len(document) > min(self._max_tenant_bytes, self._max_bytes):
            return False
        now = self._clock()
        record = (tenant, id, now + self._ttl_seconds, len(document), document)
        with self._file.transaction() as database:
            database.execute("DELETE FROM responses WHERE expires <= ?", (now,))
            database.execute(
                "INSERT OR REPLACE INTO responses (tenant, id, expires, size, document)"
                " VALUES (?, ?, ?, ?, ?)",
                record,
            )
            make_room(database, "responses", tenant, self._max_tenant_bytes, self._max_bytes)
        return True

    def _get(self, tenant: str, id: str) -> StoredResponse | None:
        with self._file.reading() as database:
            row = database.execute(
                "SELECT document FROM responses WHERE tenant = ? AND id = ? AND expires > ?",
                (tenant, id, self._clock()),
            ).fetchone()
        return None if row is None else decode_stored(row[0])

    def _delete(self, tenant: str, id: str) -> bool:
        with self._file.transaction() as database:
            found = database.execute(
                "DELETE FROM responses WHERE tenant = ? AND id = ? AND expires > ?",
                (tenant, id, self._clock()),
            )
        return found.rowcount > 0
