"""Evicted KV blocks in a memory-mapped file: a bounded second tier that survives a restart.

    ┌ header, one page ┬ slot table: 64 bytes per slot ┬ slots: payloads, page-aligned ┐

A slot's table entry is cleared before its payload changes and written after it, with an xxh3-128 of
digest and payload. So a process killed in mid-write leaves an empty slot, and bytes that were torn,
flipped or come from elsewhere are a miss, never an answer. The least recently used slot is
overwritten first; order survives a restart as far as the last write of each slot.

All methods may be called from any thread; a read copies and checks the block (about a millisecond
per megabyte), which is why it belongs on a helper thread and not into a step.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import xxhash

MAGIC = b"SKERRYKV"
VERSION = 1
PAGE = 4096
DIGEST_BYTES = 16

# magic, version, block bytes, slots, build
_HEADER = struct.Struct("<8sIQQ64s")
# sequence number (0: empty), digest, checksum
_ENTRY = struct.Struct("<Q16s16s")
_ENTRY_SIZE = 64


class FileTierError(Exception):
    """The file cannot be used; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class FileTierStatistics:
    slots: int
    used: int
    hits: int
    misses: int
    damaged: int  # entries dropped because their checksum differed


class FileTier:
    """Blocks by digest in one file of at most `capacity_bytes`.

    A file of another numeric build, block size or capacity is emptied, not refused: it is a cache.
    Raises FileTierError when the file is held by another process or cannot be made.
    """

    def __init__(
        self, path: Path, *, block_bytes: int, capacity_bytes: int, numeric_build: str
    ) -> None:
        self._block_bytes = block_bytes
        self._stride = -(-block_bytes // PAGE) * PAGE
        self._slots = max(1, capacity_bytes // (self._stride + _ENTRY_SIZE))
        self._payloads = PAGE + -(-self._slots * _ENTRY_SIZE // PAGE) * PAGE
        self._lock = threading.Lock()
        self._by_digest: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._free: list[int] = []
        self._sequence = 0
        self._hits = self._misses = self._damaged = 0
        size = self._payloads + self._slots * self._stride
        self._file, self._map = _open_mapped(path, size)
        build = numeric_build.encode()[:64]
        header = _HEADER.pack(MAGIC, VERSION, block_bytes, self._slots, build)
        if self._map[: _HEADER.size] != header:
            self._format(header)
        self._load()

    def __contains__(self, digest: bytes) -> bool:
        with self._lock:
            return digest in self._by_digest

    def __len__(self) -> int:
        with self._lock:
            return len(self._by_digest)

    def digests(self) -> list[bytes]:
        """What the tier claims to hold, least recently used first; a read may still miss."""
        with self._lock:
            return list(self._by_digest)

    def put(self, digest: bytes, block: bytes | bytearray | memoryview) -> bytes | None:
        """Store a block, and return the digest it displaced, if any. Known digests are kept.

        Raises ValueError on another size.
        """
        if len(digest) != DIGEST_BYTES or len(block) != self._block_bytes:
            raise ValueError(
                f"a block is {DIGEST_BYTES} bytes of digest and {self._block_bytes} of data, "
                f"got {len(digest)} and {len(block)}"
            )
        with self._lock:
            if digest in self._by_digest:
                self._by_digest.move_to_end(digest)
                return None
            displaced, slot = self._slot_to_write()
            self._sequence += 1
            start = self._payloads + slot * self._stride
            self._clear(slot)
            self._map[start : start + self._block_bytes] = bytes(block)
            checksum = _checksum(digest, block)
            self._write_entry(slot, _ENTRY.pack(self._sequence, digest, checksum))
            self._by_digest[digest] = slot
            return displaced

    def get(self, digest: bytes) -> bytes | None:
        """The block's bytes, checked, or None. A damaged block is dropped and is a miss."""
        with self._lock:
            slot = self._by_digest.get(digest)
            if slot is None:
                self._misses += 1
                return None
            start = self._payloads + slot * self._stride
            block = self._map[start : start + self._block_bytes]
            _, named, checksum = self._entry(slot)
            if named != digest or checksum != _checksum(digest, block):
                self._forget(digest, slot)
                self._damaged += 1
                self._misses += 1
                return None
            self._by_digest.move_to_end(digest)
            self._hits += 1
            return block

    def discard(self, digest: bytes) -> None:
        """Forget a block; unknown digests are ignored."""
        with self._lock:
            if (slot := self._by_digest.get(digest)) is not None:
                self._forget(digest, slot)

    def statistics(self) -> FileTierStatistics:
        with self._lock:
            used = len(self._by_digest)
            return FileTierStatistics(self._slots, used, self._hits, self._misses, self._damaged)

    def close(self) -> None:
        """Unmap and unlock the file; its content stays for the next start."""
        with self._lock:
            self._map.close()
            os.close(self._file)

    def _format(self, header: bytes) -> None:
        """Empty the file: the header goes last, so a half-made file is made again."""
        self._map[:PAGE] = bytes(PAGE)
        self._map[PAGE : self._payloads] = bytes(self._payloads - PAGE)
        self._map[: _HEADER.size] = header

    def _load(self) -> None:
        """Rebuild the index from the slot table; payloads are checked when they are read."""
        entries = [(*self._entry(slot), slot) for slot in range(self._slots)]
        for sequence, digest, _, slot in sorted(entries):
            if sequence == 0 or digest in self._by_digest:
                self._free.append(slot)
            else:
                self._by_digest[digest] = slot
                self._sequence = max(self._sequence, sequence)

    def _slot_to_write(self) -> tuple[bytes | None, int]:
        if self._free:
            return None, self._free.pop()
        return self._by_digest.popitem(last=False)

    def _forget(self, digest: bytes, slot: int) -> None:
        del self._by_digest[digest]
        self._clear(slot)
        self._free.append(slot)

    def _entry(self, slot: int) -> tuple[int, bytes, bytes]:
        sequence, digest, checksum = _ENTRY.unpack_from(self._map, PAGE + slot * _ENTRY_SIZE)
        return sequence, digest, checksum

    def _clear(self, slot: int) -> None:
        self._write_entry(slot, bytes(_ENTRY.size))

    def _write_entry(self, slot: int, entry: bytes) -> None:
        start = PAGE + slot * _ENTRY_SIZE
        self._map[start : start + _ENTRY.size] = entry


def _checksum(digest: bytes, block: bytes | bytearray | memoryview) -> bytes:
    state = xxhash.xxh3_128(digest)
    state.update(block)
    return state.digest()


def _open_mapped(path: Path, size: int) -> tuple[int, mmap.mmap]:
    """Open, lock, size and map the file, readable by its owner only."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FileTierError(f"{path}: cannot open the KV file: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file).st_size != size:
            os.ftruncate(file, 0)
            # Reserved now, so that a full disk is an error here and not a SIGBUS in a step.
            os.posix_fallocate(file, 0, size)
        return file, mmap.mmap(file, size)
    except BlockingIOError as error:
        os.close(file)
        raise FileTierError(f"{path}: another process uses this KV file") from error
    except OSError as error:
        os.close(file)
        raise FileTierError(f"{path}: cannot reserve {size} bytes: {error.strerror}") from error
