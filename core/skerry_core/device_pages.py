"""KV blocks on a device, between processes of one host: in memory that both can reach.

A process allocates memory of its own on its device, cuts it into pages of one block, and gives
others its handle; who can open that copies pages at the device's speed. A random mark at the start
distinguishes the memory from whatever another host has under that handle.

A page belongs to what holds it. When nothing does any more its place is free: exactly once, and
on whichever thread that happens. So pages bound what either end has on its device; what finds none
free goes through the host.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

HANDLE_BYTES = 64
MARK_BYTES = 16
FIRST_PAGE = 4096  # bytes before it: the mark, and the rest of its alignment


class Device(Protocol):
    """Memory of a device, by address. From any thread; what cannot be done raises OSError."""

    def allocate(self, num_bytes: int) -> tuple[int, bytes]:
        """Allocate memory that lasts as long as the process; return its address, and the handle by
        which other processes open it."""
        ...

    def open(self, handle: bytes) -> tuple[int, int]:
        """Open another process's memory; return its address here, and its least number of bytes."""
        ...

    def close(self, address: int) -> None:
        """Release what was opened."""
        ...

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Copy bytes from one address to another, either of which may be the host's; done when this
        returns."""
        ...

    def read(self, source: int, num_bytes: int) -> bytearray:
        """Return bytes, on the host."""
        ...

    def write(self, target: int, data: bytes) -> None:
        """Overwrite memory with bytes of the host; done when this returns."""
        ...


class DevicePages:
    """Memory that other processes may read, and its free pages. From any thread.

    It is not given back while the process lives: a peer may have it open, and what that reads then
    CUDA leaves undefined.
    """

    def __init__(self, device: Device, page_bytes: int, num_pages: int) -> None:
        """Raises OSError where there is no such memory."""
        self.device = device
        self.page_bytes = page_bytes
        self.num_bytes = FIRST_PAGE + page_bytes * num_pages
        self.address, self.handle = device.allocate(self.num_bytes)
        self.mark = secrets.token_bytes(MARK_BYTES)
        device.write(self.address, self.mark)
        self._free: SimpleQueue[int] = SimpleQueue()  # takes offsets inside a finalizer too
        for number in range(num_pages):
            self._free.put(FIRST_PAGE + page_bytes * number)

    @property
    def num_free(self) -> int:
        return self._free.qsize()

    def take(self, count: int) -> list[DevicePage]:
        """Free pages: `count`, or as many as there are."""
        pages: list[DevicePage] = []
        with suppress(Empty):
            for _ in range(count):
                pages.append(DevicePage(self, self._free.get_nowait()))
        return pages

    def free(self, offset: int) -> None:
        """Free a page; called by the page there, when it ends."""
        self._free.put(offset)


class DevicePage:
    """Memory of one block in canonical form, until nothing holds it any more."""

    def __init__(self, pages: DevicePages, offset: int) -> None:
        self.offset = offset  # bytes from the start of all pages' memory
        self._pages = pages

    def __del__(self) -> None:
        self._pages.free(self.offset)

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self._pages.page_bytes

    @property
    def address(self) -> int:
        """Return where it lies on the device; not to outlive the page."""
        return self._pages.address + self.offset

    def fill(self, source: int) -> None:
        """Copy a page from an address of a device."""
        self._pages.device.copy(self.address, source, len(self))

    def to_host(self) -> bytearray:
        return self._pages.device.read(self.address, len(self))


class PeerPages:
    """Another process's pages, as large as one's own, to be copied from."""

    def __init__(self, own: DevicePages, handle: bytes, mark: bytes, num_bytes: int) -> None:
        """Raises OSError when that memory cannot be opened here."""
        self._own = own
        self._num_bytes = num_bytes
        self._address, found = own.device.open(handle)
        self._is_open = True
        try:
            if found < num_bytes or bytes(own.device.read(self._address, MARK_BYTES)) != mark:
                raise OSError("a handle opens another memory here")
        except OSError:
            self.close()
            raise

    def copy(self, offset: int) -> DevicePage | bytearray:
        """Return what is in a page: in a page of one's own, or on the host when none is free.

        Raises ValueError outside of the memory, or OSError.
        """
        size = self._own.page_bytes
        if not FIRST_PAGE <= offset <= self._num_bytes - size:
            raise ValueError(f"a page at {offset} is outside of the device's memory")
        source = self._address + offset
        for page in self._own.take(1):
            page.fill(source)
            return page
        return self._own.device.read(source, size)

    def close(self) -> None:
        """Let go of the memory. Idempotent."""
        if self._is_open:
            self._is_open = False
            with suppress(OSError):  # nothing can be done about it
                self._own.device.close(self._address)
