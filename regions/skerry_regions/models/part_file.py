"""A file that is being downloaded: pieces as they arrive, and a journal of those that are whole.

It has its full size from the start. The journal beside it lists the pieces that are on disk, each
with a digest, so that a process that was killed at any byte loses no more than the pieces that were
under way; what is listed is compared with the disk before it is relied on.
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

PIECE: Final = 8 << 20  # bytes of a request
JOURNAL_VERSION: Final = 1


class _JournalHeader(Struct, frozen=True):
    """A journal's first line."""

    version: int
    size: int
    piece: int


class _Piece(Struct, frozen=True):
    number: int
    digest: str  # BLAKE2b-128, hex


class PartFile:
    """A file of `size` bytes that is being filled. One process at a time; any of its threads."""

    def __init__(self, path: Path, size: int, piece: int = PIECE) -> None:
        """Open or create it; what an earlier process left is checked. Raises `OSError`."""
        self.path = path
        self.size = size
        self.piece = piece
        self._journal = path.with_name(f"{path.name}.journal")
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._whole = self._read_journal()
        os.ftruncate(self._file, size)

    def close(self) -> None:
        os.close(self._file)

    def missing(self) -> list[int]:
        """Return the pieces that are not whole, in order."""
        return [
            number for number in range(-(-self.size // self.piece)) if number not in self._whole
        ]

    def bounds(self, number: int) -> tuple[int, int]:
        """Return where a piece begins and ends, its end excluded."""
        return number * self.piece, min((number + 1) * self.piece, self.size)

    @property
    def bytes_there(self) -> int:
        return sum(end - start for start, end in map(self.bounds, self._whole))

    def write(self, offset: int, data: bytes) -> None:
        while data:
            written = os.pwrite(self._file, data, offset)
            offset, data = offset + written, data[written:]

    def seal(self, number: int) -> None:
        """Write down that a piece is whole, once it is on disk."""
        os.fdatasync(self._file)
        line = msgspec.json.encode(_Piece(number, self._digest(number))) + b"\n"
        with self._lock:
            if not self._whole:
                header = _JournalHeader(JOURNAL_VERSION, self.size, self.piece)
                self._journal.write_bytes(msgspec.json.encode(header) + b"\n")
            with self._journal.open("ab") as journal:
                journal.write(line)
                journal.flush()
                os.fdatasync(journal.fileno())
            self._whole.add(number)

    def clear(self) -> None:
        """Throw away what is there: it was of something else."""
        with self._lock:
            self._whole.clear()
            self._journal.unlink(missing_ok=True)

    def discard(self) -> None:
        """Delete the file and its journal."""
        self.clear()
        self.path.unlink(missing_ok=True)

    def finish(self, target: Path) -> None:
        """Put the file in place, whole and on disk."""
        os.fsync(self._file)
        os.replace(self.path, target)
        self._journal.unlink(missing_ok=True)

    def _digest(self, number: int) -> str:
        start, end = self.bounds(number)
        return hashlib.blake2b(os.pread(self._file, end - start, start), digest_size=16).hexdigest()

    def _read_journal(self) -> set[int]:
        """Return the pieces of an earlier process that are still as it left them.

        A line that was being written when it was killed is not one.
        """
        try:
            first, *lines = self._journal.read_bytes().split(b"\n")
            header = msgspec.json.decode(first, type=_JournalHeader)
        except (FileNotFoundError, msgspec.DecodeError):
            return set()
        if header != _JournalHeader(JOURNAL_VERSION, self.size, self.piece):
            return set()
        whole = set()
        for line in lines:
            try:
                piece = msgspec.json.decode(line, type=_Piece)
            except msgspec.DecodeError:
                continue
            in_file = 0 <= piece.number * self.piece < self.size
            if in_file and self._digest(piece.number) == piece.digest:
                whole.add(piece.number)
        return whole
