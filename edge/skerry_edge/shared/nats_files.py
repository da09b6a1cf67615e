"""Files of tenants that every edge of a zone finds: pieces in a stream of JetStream, then a head.

    u.TENANT.ID.CONTENT    an upload: begun, or done and what it left is to be swept
    f.TENANT.ID.CONTENT.N  a piece
    h.TENANT.ID            the head, which names the content: without it there is no file
    t.TENANT               written with each head, so that of two uploads one sees the other

An upload that ends changes the last three of these together, or nothing. What one that died left is
swept when another begins, and expires in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from skerry.errors import Unavailable
from skerry_edge.ledger.files import (
    PIECE_BYTES,
    REPLACED,
    TOO_LONG,
    TTL_SECONDS,
    UPLOAD_SECONDS,
    FileBounds,
    KeptFiles,
    StoredFile,
    pieces_of,
)
from skerry_regions.drivers.jetstream.batch_write import write_together
from skerry_regions.drivers.jetstream.specs import key_of
from skerry_regions.drivers.jetstream.stream import KeyedStream, RevisionConflict, Write
from skerry_regions.drivers.jetstream.values import AT_ONCE, each_of

ATTEMPTS = 16  # at a tenant's files, while others change them

T = TypeVar("T")


class FileUpload(Struct, frozen=True):
    """What lies under `u.`: what is to be swept once it is too old."""

    begun_at: float  # Unix seconds
    tenant: str
    id: str
    content: str  # that has no head, or none any more; "": nothing
    state: Literal["begun", "done", "swept"] = "begun"

    @property
    def pieces(self) -> str:
        """Return their keys."""
        return f"f.{key_of(self.tenant, self.id, self.content)}.>"


_encode = msgspec.msgpack.Encoder().encode
_files = msgspec.msgpack.Decoder(StoredFile)
_uploads = msgspec.msgpack.Decoder(FileUpload)


class NatsFiles(KeptFiles):
    """See `Files`. Calls come from threads and wait for the loop of the connection."""

    def __init__(
        self,
        stream: KeyedStream,
        loop: asyncio.AbstractEventLoop,
        *,
        ttl_seconds: float = TTL_SECONDS,
        bounds: FileBounds | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(ttl_seconds, bounds, wall_clock)
        self.stream = stream
        self._loop = loop

    def close(self) -> None:
        """Do nothing: the connection is its owner's."""

    def store(self, tenant: str, file: StoredFile, chunks: Iterable[bytes]) -> StoredFile:
        file = replace(file, size=0, content=uuid.uuid4().hex)
        upload = FileUpload(self._wall_clock(), tenant, file.id, file.content)
        marker, others = self.wait(self._begin(upload, file))
        try:
            pieces = enumerate(pieces_of(chunks))
            while group := list(islice(pieces, AT_ONCE)):
                file = replace(file, size=file.size + sum(len(piece) for _, piece in group))
                self._check(file, others)
                self.wait(self._write(upload, group))
            return self.wait(self._finish(upload, marker, file))
        except BaseException:
            # Where the servers cannot be used now, it is swept later.
            with contextlib.suppress(Unavailable):
                self.wait(self._sweep(_marker(upload), upload, marker))
            raise

    def get(self, tenant: str, id: str) -> StoredFile | None:
        return self.wait(self._get(tenant, id))

    def page(
        self, tenant: str, *, purpose: str | None = None, after: str | None = None,
        limit: int = 100, newest_first: bool = True,
    ) -> list[StoredFile]:  # fmt: skip
        files = self.wait(self._files(tenant))
        if newest_first:
            files.reverse()
        ids = [file.id for file in files]
        if after is not None:
            files = files[ids.index(after) + 1 :] if after in ids else []
        return [file for file in files if purpose in (None, file.purpose)][:limit]

    def piece(self, tenant: str, file: StoredFile, position: int) -> bytes | None:
        if position * PIECE_BYTES >= file.size:
            return None
        key = f"f.{key_of(tenant, file.id, file.content)}.{position}"
        stored = self.wait(self.stream.get(key))
        if stored is None:
            raise Unavailable(REPLACED)
        return stored.data

    def delete(self, tenant: str, id: str) -> bool:
        return self.wait(self._delete(tenant, id))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what comes of work on the connection's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # --- on the loop ------------------------------------------------------------------------------

    async def _begin(self, upload: FileUpload, file: StoredFile) -> tuple[int, list[StoredFile]]:
        """Return the sequence of the upload's marker, and the tenant's other files."""
        await self._sweep_old()
        others = await self._others(upload.tenant, file)
        self._check(file, others)
        return await self.stream.write(Write(_marker(upload), _encode(upload), 0)), others

    async def _write(self, upload: FileUpload, group: list[tuple[int, bytes]]) -> None:
        prefix = key_of(upload.tenant, upload.id, upload.content)
        await each_of(
            [Write(f"f.{prefix}.{position}", piece) for position, piece in group],
            self.stream.write,
        )

    async def _finish(self, upload: FileUpload, marker: int, file: StoredFile) -> StoredFile:
        """Give a file that is whole to its tenant."""
        fence, head = f"t.{key_of(upload.tenant)}", f"h.{key_of(upload.tenant, upload.id)}"
        for _ in range(ATTEMPTS):
            if self._wall_clock() >= upload.begun_at + UPLOAD_SECONDS:
                raise Unavailable(TOO_LONG)
            turn = await self.stream.last(fence)
            self._check(file, await self._others(upload.tenant, file))
            before = await self._head(upload.tenant, upload.id)
            done = replace(upload, content=before.content if before else "", state="done")
            writes = [
                Write(fence, upload.content.encode(), 0 if turn is None else turn.sequence),
                Write(_marker(upload), _encode(done), marker),
                Write(head, _encode(file)),
            ]
            try:
                await write_together(self.stream, writes)
            except RevisionConflict:
                found = await self.stream.last(_marker(upload))
                match "swept" if found is None else _uploads.decode(found.data).state:
                    case "begun":
                        continue  # another file of the tenant was faster
                    case "swept":
                        raise Unavailable(TOO_LONG) from None
                    case "done":  # at an earlier attempt, whose answer was lost
                        pass
            with contextlib.suppress(Unavailable):  # then it is swept later
                await self._sweep(_marker(upload), done)
            return file
        raise Unavailable("The tenant's files are changed by too many at once.")

    async def _get(self, tenant: str, id: str) -> StoredFile | None:
        file = await self._head(tenant, id)
        return None if file is None or file.expires_at <= self._wall_clock() else file

    async def _head(self, tenant: str, id: str) -> StoredFile | None:
        stored = await self.stream.last(f"h.{key_of(tenant, id)}")
        return None if stored is None or not stored.data else _files.decode(stored.data)

    async def _files(self, tenant: str) -> list[StoredFile]:
        """Return a tenant's files in the order in which they became whole."""
        keys = await self.stream.keys(f"h.{key_of(tenant)}.*")
        heads = [head for head in await each_of(keys, self.stream.last) if head and head.data]
        heads.sort(key=lambda head: head.sequence)
        now = self._wall_clock()
        files = [_files.decode(head.data) for head in heads]
        return [file for file in files if file.expires_at > now]

    async def _others(self, tenant: str, file: StoredFile) -> list[StoredFile]:
        if file.purpose != "batch":
            return []
        return [each for each in await self._files(tenant) if each.id != file.id]

    def _check(self, file: StoredFile, others: list[StoredFile]) -> None:
        if file.purpose == "batch":
            self._bounds.check(file.size, len(others), sum(each.size for each in others))

    async def _delete(self, tenant: str, id: str) -> bool:
        key = f"h.{key_of(tenant, id)}"
        for _ in range(ATTEMPTS):
            stored = await self.stream.last(key)
            if stored is None or not stored.data:
                return False
            file = _files.decode(stored.data)
            try:
                gone = await self.stream.write(Write(key, b"", stored.sequence))
            except RevisionConflict:
                continue
            with contextlib.suppress(Unavailable):  # all of it expires
                await self.stream.delete(f"f.{key_of(tenant, id, file.content)}.>")
                await self.stream.delete(key, through=gone)
            return file.expires_at > self._wall_clock()
        raise Unavailable("The file is changed by too many at once.")

    async def _sweep_old(self) -> None:
        """Sweep what uploads that ended, or never will, left behind."""
        for key in await self.stream.keys("u.>"):
            stored = await self.stream.last(key)
            if stored is not None:
                upload = _uploads.decode(stored.data)
                if upload.begun_at + UPLOAD_SECONDS <= self._wall_clock():
                    await self._sweep(key, upload, stored.sequence)

    async def _sweep(self, key: str, upload: FileUpload, sequence: int = 0) -> None:
        """Delete pieces that have no head, and what says that they are to be. An upload that is
        done by now, though this one began it, is left alone."""
        if upload.state == "begun":
            try:
                await self.stream.write(
                    Write(key, _encode(replace(upload, state="swept")), sequence)
                )
            except RevisionConflict as conflict:
                found = conflict.found
                if found is not None and _uploads.decode(found.data).state == "done":
                    return
        if upload.content:
            await self.stream.delete(upload.pieces)
        await self.stream.delete(key)


def _marker(upload: FileUpload) -> str:
    return f"u.{key_of(upload.tenant, upload.id, upload.content)}"
