"""KV blocks between processes of one host: in memory that both have mapped, not through a socket.

The sender owns a memory file (memfd_create(2)), cut into slots of one block. It names the file in
its offer; a peer that can open it by that name, as only processes of the same user on the same
host can, is then sent slots instead of bytes. Seals keep the file from shrinking
under a reader. A random mark at its start distinguishes it from whatever another host, or another
PID namespace, has under that name.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
from typing import Annotated

from msgspec import Meta, Struct

Buffer = bytes | bytearray | memoryview

MARK_BYTES = 16
MAX_SHARED_BYTES = 1 << 30  # of one memory file
_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)
_FIRST_SLOT = mmap.PAGESIZE


class SharedMemory(Struct, frozen=True):
    """The place of a sender's slots."""

    path: Annotated[str, Meta(max_length=64)]
    mark: Annotated[bytes, Meta(min_length=MARK_BYTES, max_length=MARK_BYTES)]
    num_bytes: Annotated[int, Meta(gt=_FIRST_SLOT, le=MAX_SHARED_BYTES)]


class SharedSlots:
    """The sender's side, shared by all its transfers. Belongs to one thread."""

    def __init__(self, slot_bytes: int, num_slots: int) -> None:
        """Raises OSError where there is no such memory."""
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memory files")
        self.slot_bytes = slot_bytes
        num_bytes = _FIRST_SLOT + slot_bytes * num_slots
        self._file = os.memfd_create("skerry-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._file, num_bytes)
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALS)
            self._memory = mmap.mmap(self._file, num_bytes)
        except BaseException:
            os.close(self._file)
            raise
        mark = self._memory[:MARK_BYTES] = secrets.token_bytes(MARK_BYTES)
        self.where = SharedMemory(f"/proc/{os.getpid()}/fd/{self._file}", mark, num_bytes)
        self._free = [_FIRST_SLOT + slot_bytes * number for number in reversed(range(num_slots))]

    @property
    def num_free(self) -> int:
        return len(self._free)

    def put(self, block: Buffer) -> int | None:
        """Copy a block of `slot_bytes` into a slot; where that is, or None when all are taken."""
        if not self._free or self._memory.closed:
            return None
        offset = self._free.pop()  # the last one freed: its pages are there, perhaps in a cache
        self._memory[offset : offset + self.slot_bytes] = block
        return offset

    def free(self, offset: int) -> None:
        """Give a slot back that `put` returned."""
        self._free.append(offset)

    def close(self) -> None:
        """Give the memory back; nothing is put any more. Idempotent."""
        if not self._memory.closed:
            self._memory.close()
            os.close(self._file)


class SharedView:
    """The receiver's side: another process's slots, to be read."""

    def __init__(self, where: SharedMemory) -> None:
        """Raises OSError when there is no such file here, or when it could shrink."""
        file = os.open(where.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise OSError(f"{where.path} is not sealed")
            self._memory = mmap.mmap(file, where.num_bytes, access=mmap.ACCESS_READ)
        except ValueError as error:  # shorter than it says
            raise OSError(f"{where.path}: {error}") from None
        finally:
            os.close(file)
        if self._memory[:MARK_BYTES] != where.mark:
            self.close()
            raise OSError(f"{where.path} is another file here")

    def copy(self, offset: int, size: int) -> bytes:
        """Return bytes of a slot. Raises ValueError outside of the memory."""
        if not 0 <= offset <= offset + size <= len(self._memory):
            raise ValueError(f"{size} bytes at {offset} are outside of the shared memory")
        return self._memory[offset : offset + size]

    def close(self) -> None:
        self._memory.close()
