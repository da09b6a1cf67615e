"""Evicted KV blocks in a file: a bounded second tier that survives a restart.

    ┌ header, one page ┬ slot table: 64 bytes per slot ┬ slots: payloads, page-aligned ┐
    └────────────────── mapped ────────────────────────┘

A slot's table entry is cleared before its payload changes and written after it, with an xxh3-128 of
digest and payload. So a process killed in mid-write leaves an empty slot, and bytes that were torn,
flipped or come from elsewhere are a miss, never an answer. The least recently used slot is
overwritten first, except those that are pinned; order survives a restart as far as the last write
of each slot, and so do pins.

Only the table is accessed through the mapping. Payloads are written and read in one call each,
through the same page cache: a full disk or a bad sector is then an error instead of a SIGBUS, the
interpreter is free meanwhile, and the file does not count as this process's memory. Disk space is
taken as slots are first used.

All methods may be called from any thread. `put` and `get` move a block (about a millisecond per
megabyte, more when the disk is read), so they belong on a helper thread and not into a step; the
others never wait for them.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import xxhash

from skerry_core.blocks import CacheChanges, ChangeLog
from skerry_core.kv.mapped_file import FileTierError, open_mapped
from skerry_core.pins import PIN_SHARE, Pins

MAGIC = b"SKERRYKV"
VERSION = 3  # 2 had no pins: where they are it has zeros
PAGE = 4096
DIGEST_BYTES = 16

# magic, version, block bytes, slots, hash of the content's identity
_HEADER = struct.Struct("<8sIQQ32s")
# sequence number (0: empty), digest, checksum; until when it is pinned (Unix seconds), and by whom
_ENTRY = struct.Struct("<Q16s16sd16s")
_ENTRY_SIZE = 64
MAX_PIN_SECONDS = 86_400.0

_Entry = tuple[int, bytes, bytes, float, bytes]
FilePin = tuple[float, bytes]
"""Seconds that a block stays in the file, and its tenant's cache key."""


class FileTier:
    """Blocks by digest in one file of at most `capacity_bytes`.

    `identity` says what the bytes mean: model, numeric build, KV format. A file of another
    identity, block size or capacity is emptied, not refused: it is a cache. `pin_share` of the
    slots may be pinned by one tenant; see `Pins`. `wall_clock` is in Unix seconds.
    Raises FileTierError when the file is held by another process or cannot be made.
    """

    def __init__(
        self,
        path: Path,
        *,
        block_bytes: int,
        capacity_bytes: int,
        identity: bytes,
        pin_share: float = PIN_SHARE,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._block_bytes = block_bytes
        self._stride = -(-block_bytes // PAGE) * PAGE
        self._slots = (capacity_bytes - 2 * PAGE) // (self._stride + _ENTRY_SIZE)
        if self._slots < 1:
            raise FileTierError(f"{path}: {capacity_bytes} bytes hold no block of {block_bytes}")
        self._payloads = PAGE + -(-self._slots * _ENTRY_SIZE // PAGE) * PAGE
        self._transfer = threading.Lock()  # held while a block is moved; taken before `_lock`
        self._lock = threading.Lock()  # guards all below, and is held for moments only
        self._by_digest: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._changes = ChangeLog()
        self._free: list[int] = []
        self._sequence = 0
        self._wall_clock = wall_clock
        self._pins = Pins(self._slots, pin_share)
        size = self._payloads + self._slots * self._stride
        self._file, self._table = open_mapped(path, size, self._payloads)
        content = hashlib.blake2b(identity, digest_size=32).digest()
        of_version_2, header = (
            _HEADER.pack(MAGIC, version, block_bytes, self._slots, content)
            for version in (2, VERSION)
        )
        if self._table[: _HEADER.size] == of_version_2:
            self._table[: _HEADER.size] = header
        elif self._table[: _HEADER.size] != header:
            self._format(header)
        self._load()

    def __contains__(self, digest: bytes) -> bool:
        with self._lock:
            return digest in self._by_digest

    def __len__(self) -> int:
        with self._lock:
            return len(self._by_digest)

    def digests(self) -> list[bytes]:
        """Return what the tier claims to hold, least recently used first; a read may still miss."""
        with self._lock:
            return list(self._by_digest)

    def drain_changes(self) -> CacheChanges:
        """Return net changes of what it holds since the last call or the start."""
        with self._lock:
            return self._changes.drain()

    def put(self, digest: bytes, block: bytes | memoryview, pin: FilePin | None = None) -> None:
        """Store a block, in place of the least recently used one when all slots are taken.

        A known digest is kept as it is, but for its pin. Raises ValueError on another size, and
        OSError when the disk refuses; then the slot that was to be written is empty.
        """
        if len(digest) != DIGEST_BYTES or len(block) != self._block_bytes:
            expected = f"{DIGEST_BYTES} bytes of digest and {self._block_bytes} of data"
            raise ValueError(f"a block is {expected}, got {len(digest)} and {len(block)}")
        with self._transfer:
            if self.touch(digest, pin):
                return
            with self._lock:
                slot = self._slot_to_write()
                self._clear(slot)
            try:
                self._write_payload(slot, block)
            except OSError:
                with self._lock:
                    self._free.append(slot)
                raise
            checksum = _checksum(digest, block)
            with self._lock:
                self._sequence += 1
                self._write_entry(slot, (self._sequence, digest, checksum, 0.0, b""))
                self._by_digest[digest] = slot
                self._changes.note(digest, is_here=True)
                if pin is not None:
                    self._pin(slot, pin)

    def get(self, digest: bytes) -> bytes | None:
        """Return the block's bytes, checked, or None. A damaged block is dropped and is a miss."""
        with self._transfer:
            with self._lock:
                if (slot := self._by_digest.get(digest)) is None:
                    return None
                _, named, checksum, *_ = self._entry(slot)
            block = self._read_payload(slot)
            is_whole = named == digest and checksum == _checksum(digest, block)
            with self._lock:
                if not is_whole:
                    self._forget(digest)
                    return None
                self._by_digest.move_to_end(digest)
                return block

    def touch(self, digest: bytes, pin: FilePin | None = None) -> bool:
        """Make a block the most recently used, and pin it; False when it is not here."""
        with self._lock:
            if (slot := self._by_digest.get(digest)) is None:
                return False
            self._by_digest.move_to_end(digest)
            if pin is not None:
                self._pin(slot, pin)
            return True

    def close(self) -> None:
        """Unmap and unlock the file; its content stays for the next start."""
        with self._transfer, self._lock:
            self._table.close()
            os.close(self._file)

    def _format(self, header: bytes) -> None:
        """Empty the file: the header goes last, so a half-made file is made again."""
        self._table[:] = bytes(self._payloads)
        self._table[: _HEADER.size] = header

    def _load(self) -> None:
        """Rebuild the index from the slot table; payloads are checked when they are read."""
        now = self._wall_clock()
        entries = [(*self._entry(slot), slot) for slot in range(self._slots)]
        for sequence, digest, _, end, owner, slot in sorted(entries):
            if sequence == 0 or digest in self._by_digest:
                self._free.append(slot)
            else:
                self._by_digest[digest] = slot
                self._sequence = max(self._sequence, sequence)
                if now < end <= now + MAX_PIN_SECONDS:
                    self._pins.add([slot], [end], owner)

    def _pin(self, slot: int, pin: FilePin) -> None:
        """Keep a slot for a time, as far as its tenant may."""
        seconds, owner = pin
        end = self._wall_clock() + min(seconds, MAX_PIN_SECONDS)
        name = hashlib.blake2b(owner, digest_size=16).digest()
        if self._pins.add([slot], [end], name).num_pinned:
            sequence, digest, checksum, *_ = self._entry(slot)
            self._write_entry(slot, (sequence, digest, checksum, end, name))

    def _slot_to_write(self) -> int:
        """Return a slot that is free now: the least recently used one, of those that are not pinned
        if there are any. Pinned ones that it passes count as used."""
        if not self._free:
            self._pins.expire(self._wall_clock())
            for _ in range(len(self._pins.blocks)):
                digest, slot = next(iter(self._by_digest.items()))
                if slot not in self._pins.blocks:
                    break
                self._by_digest.move_to_end(digest)
            self._forget(next(iter(self._by_digest)))
        return self._free.pop()

    def _forget(self, digest: bytes) -> None:
        slot = self._by_digest.pop(digest)
        if slot in self._pins.blocks:
            self._pins.remove(slot)
        self._changes.note(digest, is_here=False)
        self._clear(slot)
        self._free.append(slot)

    def _entry(self, slot: int) -> _Entry:
        entry: _Entry = _ENTRY.unpack_from(self._table, PAGE + slot * _ENTRY_SIZE)
        return entry

    def _clear(self, slot: int) -> None:
        self._write_entry(slot, (0, b"", b"", 0.0, b""))

    def _write_entry(self, slot: int, entry: _Entry) -> None:
        _ENTRY.pack_into(self._table, PAGE + slot * _ENTRY_SIZE, *entry)

    def _write_payload(self, slot: int, block: bytes | memoryview) -> None:
        """Write a block's bytes. Raises OSError."""
        start, data = self._payloads + slot * self._stride, memoryview(block)
        while data:
            written = os.pwrite(self._file, data, start)
            start, data = start + written, data[written:]

    def _read_payload(self, slot: int) -> bytes:
        """Read what is there; fewer bytes than a block when the disk fails."""
        try:
            start = self._payloads + slot * self._stride
            return os.pread(self._file, self._block_bytes, start)
        except OSError:
            return b""


def _checksum(digest: bytes, block: bytes | memoryview) -> bytes:
    state = xxhash.xxh3_128(digest)
    state.update(block)
    return state.digest()
