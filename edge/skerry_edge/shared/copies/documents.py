"""Responses and idempotency keys as the ends of a copy. What is copied is kept for another day."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from skerry.errors import Unavailable
from skerry_edge.ledger import idempotency, responses_store
from skerry_edge.shared.nats_keys import VERSION, FirstRequest, decode_first, encode_first, key_name
from skerry_regions.drivers.jetstream.specs import key_of, parts_of
from skerry_regions.drivers.jetstream.stream import KeyedStream, RevisionConflict, Write
from skerry_regions.drivers.jetstream.values import read_value, write_value
from skerry_regions.drivers.sqlite_file import SqliteFile
from skerry_regions.drivers.sqlite_steps import Steps

WRITE_SECONDS = 20.0

T = TypeVar("T")


class CopiedDocument(Struct, frozen=True):
    """A response with its conversation, or a key's first request."""

    tenant: str
    id: str  # of the response; the key
    document: bytes


class SqliteTable:
    """A file of the home, whose rows have names: a tenant's, and their own."""

    def __init__(self, path: Path, steps: Steps, rows: str) -> None:
        """`rows` is SQL of ours: what selects the names of rows that count now."""
        self._path = path
        self.file = SqliteFile(path, steps)
        self._rows = rows
        self._named: dict[str, tuple[str, ...]] = {}  # names, by key

    def keys(self) -> list[str]:
        if not self._path.exists():
            return []
        with self.file.reading() as database:
            rows = database.execute(self._rows, self.now()).fetchall()
        self._named = {self.key(*names): names for names in rows}
        return [*self._named]

    def now(self) -> tuple[float | str, ...]:
        """Return by what SQL knows rows that count now."""
        return (time.time(),)

    def key(self, *names: str) -> str:
        """Return the key that both ends have."""
        return key_of(*names)

    def named(self, key: str) -> tuple[str, ...]:
        return self._named[key]

    def close(self) -> None:
        self.file.close()


class SqliteResponses(SqliteTable):
    """See `StateTable`."""

    def __init__(self, path: Path) -> None:
        rows = "SELECT tenant, id FROM responses WHERE expires > ? ORDER BY number"
        super().__init__(path, (responses_store.SCHEMA,), rows)

    def read(self, key: str) -> CopiedDocument | None:
        with self.file.reading() as database:
            row = database.execute(
                "SELECT tenant, id, document FROM responses WHERE tenant = ? AND id = ?",
                self.named(key),
            ).fetchone()
        return None if row is None else CopiedDocument(*row)

    def write(self, record: CopiedDocument, /) -> None:
        expires = time.time() + responses_store.TTL_SECONDS
        size = len(record.document)
        with self.file.transaction() as database:
            database.execute(
                "INSERT OR IGNORE INTO responses (tenant, id, expires, size, document)"
                " VALUES (?, ?, ?, ?, ?)",
                (record.tenant, record.id, expires, size, record.document),
            )


class SqliteKeys(SqliteTable):
    """See `StateTable`."""

    def __init__(self, path: Path) -> None:
        rows = "SELECT tenant, key FROM keys WHERE expires > ? ORDER BY number"
        super().__init__(path, idempotency.STEPS, rows)

    def key(self, *names: str) -> str:
        return key_name(*names)

    def read(self, key: str) -> CopiedDocument | None:
        tenant, name = self.named(key)
        with self.file.reading() as database:
            row = database.execute(
                "SELECT request, first_id, defaults FROM keys WHERE tenant = ? AND key = ?",
                (tenant, name),
            ).fetchone()
        if row is None:
            return None
        return CopiedDocument(tenant, name, encode_first(FirstRequest(VERSION, name, *row)))

    def write(self, record: CopiedDocument, /) -> None:
        first, expires = decode_first(record.document), time.time() + idempotency.TTL_SECONDS
        with self.file.transaction() as database:
            database.execute(
                "INSERT OR IGNORE INTO keys (tenant, key, request, first_id, expires, defaults)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (record.tenant, first.key, first.request, first.first_id, expires, first.defaults),
            )


class NatsTable:
    """A stream, from a thread that is not its connection's loop."""

    def __init__(self, stream: KeyedStream, loop: asyncio.AbstractEventLoop) -> None:
        self.stream = stream
        self._loop = loop

    def keys(self) -> list[str]:
        return self.wait(self.stream.keys("*.*"))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class NatsDocuments(NatsTable):
    """The responses of a zone; see `StateTable`."""

    def read(self, key: str) -> CopiedDocument | None:
        document = self.wait(read_value(self.stream, key))
        tenant, id = parts_of(key)
        return None if document is None else CopiedDocument(tenant, id, document)

    def write(self, record: CopiedDocument, /) -> None:
        key = key_of(record.tenant, record.id)
        self.wait(write_value(self.stream, key, record.document, seconds=WRITE_SECONDS))


class NatsFirstRequests(NatsTable):
    """The idempotency keys of a zone; see `StateTable`."""

    def read(self, key: str) -> CopiedDocument | None:
        stored = self.wait(self.stream.last(key))
        if stored is None:
            return None
        return CopiedDocument(parts_of(key)[0], decode_first(stored.data).key, stored.data)

    def write(self, record: CopiedDocument, /) -> None:
        self.wait(self._write(Write(key_name(record.tenant, record.id), record.document, 0)))

    async def _write(self, write: Write) -> None:
        try:
            await self.stream.write(write, seconds=WRITE_SECONDS)
        except RevisionConflict as conflict:
            if conflict.found is None:
                raise Unavailable(f"{self.stream.name} does not keep {write.key}.") from None
