"""Files of tenants: what batches read and write, bounded and kept for a stated time.

Contents lie in pieces, so that neither storing nor sending a file holds the whole of it in memory.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from msgspec import Struct

from skerry.errors import BodyTooLarge, QuotaExceeded

PIECE_BYTES = 256 << 10
TTL_SECONDS = 30 * 86400.0
MAX_FILE_BYTES = 256 << 20
MAX_TENANT_BYTES = 2 << 30
MAX_TENANT_FILES = 10_000
UPLOAD_SECONDS = 3600.0  # in which a file must be whole
REPLACED = "The file was replaced or deleted while it was read."
TOO_LONG = "The file took too long to be stored."

Purpose = Literal["batch", "batch_output"]


class StoredFile(Struct, frozen=True, kw_only=True):
    """What is known of a file. Times are Unix seconds, `size` is bytes."""

    id: str
    filename: str
    purpose: Purpose
    created_at: float
    expires_at: float
    size: int
    residency: str | None = None  # zone that what it says never leaves
    content: str = ""  # names what it holds; a file that takes its place has another


class Files(Protocol):
    """Files by tenant and id; none finds another's. Every driver passes one conformance suite.

    Calls block and may come from any thread; they raise `Unavailable` when the store cannot be
    used.
    """

    def put(
        self, tenant: str, id: str, filename: str, purpose: Purpose, chunks: Iterable[bytes], *,
        residency: str | None = None,
    ) -> StoredFile:  # fmt: skip
        """Keep a file, whole or not at all, in place of an earlier one of that id. Other calls get
        their turn while it is written, and find it when it is whole.

        Of what tenants send: raises `BodyTooLarge`, or `QuotaExceeded` when their files leave no
        room. What batches write is bounded by their queue.
        """
        ...

    def get(self, tenant: str, id: str) -> StoredFile | None:
        """Return what is known of a file, unless it expired."""
        ...

    def page(
        self, tenant: str, *, purpose: str | None = None, after: str | None = None,
        limit: int = 100, newest_first: bool = True,
    ) -> list[StoredFile]:  # fmt: skip
        """Return a tenant's files in order of their making, those that follow the file `after`."""
        ...

    def piece(self, tenant: str, file: StoredFile, position: int) -> bytes | None:
        """Return one piece of what a file held when it was found; None behind the last one.

        Raises `Unavailable` when another took its place since, or it was deleted: whoever reads
        gets one content, or an error.
        """
        ...

    def delete(self, tenant: str, id: str) -> bool:
        """Forget a file. False if there is none."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBounds:
    """What a tenant's files may take. Sizes in bytes."""

    file_bytes: int = MAX_FILE_BYTES
    tenant_bytes: int = MAX_TENANT_BYTES
    tenant_files: int = MAX_TENANT_FILES

    def check(self, size: int, num_others: int, other_bytes: int) -> None:
        """Check that a file of `size` may come to a tenant's others. Raises as `Files.put`."""
        if size > self.file_bytes:
            raise BodyTooLarge(f"The file exceeds {self.file_bytes} bytes.")
        if num_others >= self.tenant_files:
            raise QuotaExceeded(f"{num_others} files are stored already; delete some.")
        if other_bytes + size > self.tenant_bytes:
            raise QuotaExceeded(f"Files may take {self.tenant_bytes} bytes in all; delete some.")


class KeptFiles(ABC):
    """What the drivers of `Files` have in common."""

    def __init__(
        self, ttl_seconds: float, bounds: FileBounds | None, wall_clock: Callable[[], float]
    ) -> None:
        self._ttl_seconds = ttl_seconds
        self._bounds = bounds or FileBounds()
        self._wall_clock = wall_clock

    def put(
        self, tenant: str, id: str, filename: str, purpose: Purpose, chunks: Iterable[bytes], *,
        residency: str | None = None,
    ) -> StoredFile:  # fmt: skip
        now = self._wall_clock()
        file = StoredFile(
            id=id, filename=filename, purpose=purpose, created_at=now, size=0, residency=residency,
            expires_at=now + self._ttl_seconds,
        )  # fmt: skip
        return self.store(tenant, file, chunks)

    @abstractmethod
    def store(self, tenant: str, file: StoredFile, chunks: Iterable[bytes]) -> StoredFile:
        """Keep a file as `put` does, of which all is known but its content."""


def stored_pieces(files: Files, tenant: str, file: StoredFile) -> Iterator[bytes]:
    """Yield what a file holds, piece by piece. Blocks."""
    for position in itertools.count():
        piece = files.piece(tenant, file, position)
        if piece is None:
            return
        yield piece


def pieces_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of one size."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        while len(held) >= PIECE_BYTES:
            yield bytes(held[:PIECE_BYTES])
            del held[:PIECE_BYTES]
    if held:
        yield bytes(held)
