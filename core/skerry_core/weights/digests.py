"""Digests of large files, computed once for each state that a file is in.

A state is a file's size, time of change and inode: what is replaced or written to gets another one.
A disk that changes bits by itself does not, so whoever doubts a file has it read again (`skerry
models verify`).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Final

import msgspec
import xxhash
from msgspec import Struct

VERSION: Final = 1  # of the file; what another version wrote is computed again
_TICK = 2.0  # seconds: within them a file can change twice and show one time of change


class FileState(Struct, frozen=True):
    """What shows whether a file may have changed."""

    size: int
    modified_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


class _Digested(Struct, frozen=True):
    state: FileState
    digest: str  # xxh3-128, hex


class _DigestsFile(Struct, frozen=True):
    version: int = VERSION
    files: dict[str, _Digested] = {}  # by absolute path


class FileDigests:
    """The digests that a JSON file keeps. Of two processes that write it one's news may be lost,
    which costs reading a file once more."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def known(self, file: Path, state: FileState) -> str | None:
        """Return the digest of a file in this state, if there is one."""
        found = self._read().files.get(str(file.absolute()))
        return None if found is None or found.state != state else found.digest

    def of(self, file: Path) -> str:
        """Return the digest of a file's bytes: a known one, or that of reading them all.

        Raises OSError.
        """
        with file.open("rb", buffering=0) as opened:
            state = FileState.of(os.fstat(opened.fileno()))
            known = self.known(file, state)
            if known is not None:
                return known
            started, digest = time.time(), digest_of(opened)
            is_settled = abs(started - state.modified_ns / 1e9) > _TICK
            if is_settled and state == FileState.of(os.fstat(opened.fileno())):
                self.keep(file, state, digest)
            return digest

    def keep(self, file: Path, state: FileState, digest: str) -> None:
        """Keep a digest; those of files that are gone are dropped. Raises OSError."""
        files = {path: each for path, each in self._read().files.items() if os.path.exists(path)}
        files[str(file.absolute())] = _Digested(state, digest)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
        try:
            with os.fdopen(handle, "wb") as opened:
                opened.write(msgspec.json.encode(_DigestsFile(files=files)))
            os.replace(draft, self._path)
        except OSError:  # a full disk
            os.unlink(draft)
            raise

    def _read(self) -> _DigestsFile:
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=_DigestsFile)
        except (FileNotFoundError, msgspec.DecodeError):
            return _DigestsFile()
        return kept if kept.version == VERSION else _DigestsFile()


def digest_of(file: BufferedReader | FileIO) -> str:
    """Return the digest of what follows in an open file."""
    return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
