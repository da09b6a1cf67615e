"""Tenants' files as the ends of a copy: of a home, and of a zone on NATS servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

from skerry_edge.ledger.file_store import NOBODY, FileStore
from skerry_edge.ledger.files import FileBounds, Files, StoredFile, stored_pieces
from skerry_edge.shared.nats_files import NatsFiles
from skerry_regions.drivers.jetstream.specs import key_of, parts_of
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.jetstream.values import each_of

FilesT = TypeVar("FilesT", bound=FileStore | NatsFiles)

UNBOUNDED = FileBounds(tenant_bytes=1 << 60, tenant_files=1 << 60)  # they were taken once


class CopiedFile(Struct, frozen=True):
    """A file, and where its content is read."""

    tenant: str
    file: StoredFile
    files: Files

    def pieces(self) -> Iterator[bytes]:
        return stored_pieces(self.files, self.tenant, self.file)


class FileTable(Generic[FilesT]):
    """What both ends of a copy of files do alike; see `StateTable`."""

    def __init__(self, files: FilesT) -> None:
        self._files = files

    def read(self, key: str) -> CopiedFile | None:
        tenant, id = parts_of(key)
        file = self._files.get(tenant, id)
        return None if file is None else CopiedFile(tenant, file, self._files)

    def write(self, record: CopiedFile, /) -> None:
        self._files.store(record.tenant, record.file, record.pieces())


class SqliteFiles(FileTable[FileStore]):
    """The files of a home."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(FileStore(path, bounds=UNBOUNDED))

    def keys(self) -> list[str]:
        if not self._path.exists():
            return []
        with self._files.file.reading() as database:
            rows = database.execute(
                "SELECT tenant, id FROM files WHERE tenant <> ? AND expires > ? ORDER BY number",
                (NOBODY, time.time()),
            ).fetchall()
        return [key_of(tenant, id) for tenant, id in rows]

    def close(self) -> None:
        self._files.close()


class NatsFileTable(FileTable[NatsFiles]):
    """The files of a zone. Calls come from a thread."""

    def __init__(self, stream: KeyedStream, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(NatsFiles(stream, loop, bounds=UNBOUNDED))

    def keys(self) -> list[str]:
        return self._files.wait(self._keys())

    async def _keys(self) -> list[str]:
        stream = self._files.stream
        heads = await each_of(await stream.keys("h.*.*"), stream.last)
        there = [head for head in heads if head is not None and head.data]
        there.sort(key=lambda head: head.sequence)
        return [head.key.removeprefix("h.") for head in there]
