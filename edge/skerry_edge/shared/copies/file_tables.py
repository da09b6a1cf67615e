"""Tenants' files as the ends of a copy: of a home, and of a zone on NATS servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from skerry_edge.ledger.file_store import NOBODY, FileStore
from skerry_edge.ledger.files import FileBounds, Files, StoredFile
from skerry_edge.shared.nats_files import NatsFiles
from skerry_regions.drivers.jetstream.specs import key_of, parts_of
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.jetstream.values import each_of

UNBOUNDED = FileBounds(tenant_bytes=1 << 60, tenant_files=1 << 60)  # they were taken once


class CopiedFile(Struct, frozen=True):
    """A file, and where its content is read."""

    tenant: str
    file: StoredFile
    files: Files

    def pieces(self) -> Iterator[bytes]:
        position = 0
        while (piece := self.files.piece(self.tenant, self.file, position)) is not None:
            yield piece
            position += 1


class FileTable:
    """What both ends of a copy of files do alike; see `StateTable`."""

    def __init__(self, files: FileStore | NatsFiles) -> None:
        self._files = files

    def read(self, key: str) -> CopiedFile | None:
        tenant, id = parts_of(key)
        file = self._files.get(tenant, id)
        return None if file is None else CopiedFile(tenant, file, self._files)

    def write(self, record: CopiedFile, /) -> None:
        self._files.store(record.tenant, record.file, record.pieces())


class SqliteFiles(FileTable):
    """The files of a home."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store = FileStore(path, bounds=UNBOUNDED)
        super().__init__(self._store)

    def keys(self) -> list[str]:
        if not self._path.exists():
            return []
        with self._store.file.reading() as database:
            rows = database.execute(
                "SELECT tenant, id FROM files WHERE tenant <> ? AND expires > ? ORDER BY number",
                (NOBODY, time.time()),
            ).fetchall()
        return [key_of(tenant, id) for tenant, id in rows]

    def close(self) -> None:
        self._store.close()


class NatsFileTable(FileTable):
    """The files of a zone. Calls come from a thread."""

    def __init__(self, stream: KeyedStream, loop: asyncio.AbstractEventLoop) -> None:
        self._shared = NatsFiles(stream, loop, bounds=UNBOUNDED)
        super().__init__(self._shared)

    def keys(self) -> list[str]:
        return self._shared.wait(self._keys())

    async def _keys(self) -> list[str]:
        stream = self._shared.stream
        heads = await each_of(await stream.keys("h.*.*"), stream.last)
        there = [head for head in heads if head is not None and head.data]
        there.sort(key=lambda head: head.sequence)
        return [head.key.removeprefix("h.") for head in there]
