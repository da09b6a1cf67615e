"""A CUDA driver without a device: memory files stand in for its memory, so that another process
opens them as it would a device's. And the toy model with its KV "on" such a device.

`python -m tests.core.host_device HANDLE MARK NUM_BYTES PAGE_BYTES OFFSET`, the first two in hex,
prints what another process has in a page.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Sequence
from ctypes import addressof, c_char, c_ubyte
from itertools import count
from typing import Any

import numpy as np

from skerry_core.device_pages import (
    HANDLE_BYTES,
    MARK_BYTES,
    DevicePage,
    DevicePages,
    PeerPages,
)
from skerry_core.kernels.torch.cuda_memory import CudaDevice
from skerry_core.kv.canonical import kv_dtype
from skerry_core.page_checksums import Checksums, check_pages, page_checksums
from skerry_core.runners.toy import ToyRunner

SUCCESS, INVALID_VALUE, INVALID_DEVICE, INVALID_CONTEXT, INVALID_HANDLE = 0, 1, 101, 201, 400
NAMES = {
    INVALID_VALUE: b"CUDA_ERROR_INVALID_VALUE",
    INVALID_DEVICE: b"CUDA_ERROR_INVALID_DEVICE",
    INVALID_CONTEXT: b"CUDA_ERROR_INVALID_CONTEXT",
    INVALID_HANDLE: b"CUDA_ERROR_INVALID_HANDLE",
}


class HostDriver:
    """Those functions of libcuda that `CudaDevice` calls, for one device."""

    def __init__(self, *, exports: bool = True, opens: bool = True) -> None:
        self.exports, self.opens = exports, opens  # whether there are handles, and they can be used
        self.allocated: dict[int, tuple[int, mmap.mmap]] = {}  # file and memory by address
        self.opened: dict[int, mmap.mmap] = {}
        self.events = set[int]()
        self._numbers = count(1)
        self._thread = threading.local()

    def __del__(self) -> None:
        for file, _ in self.allocated.values():
            os.close(file)

    @property
    def _has_context(self) -> bool:
        """Whether this thread may touch the device."""
        return getattr(self._thread, "depth", 0) > 0

    def cuGetErrorName(self, status: int, out: Any) -> int:
        out._obj.value = NAMES[status]
        return SUCCESS

    def cuInit(self, flags: Any) -> int:
        return SUCCESS

    def cuDeviceGet(self, out: Any, index: Any) -> int:
        return SUCCESS if index.value == 0 else INVALID_DEVICE

    def cuDevicePrimaryCtxRetain(self, out: Any, device: Any) -> int:
        out._obj.value = 1
        return SUCCESS

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self._thread.depth = getattr(self._thread, "depth", 0) + 1
        return SUCCESS if context.value == 1 else INVALID_CONTEXT

    def cuCtxPopCurrent_v2(self, out: Any) -> int:
        self._thread.depth -= 1
        return SUCCESS

    def cuStreamCreateWithPriority(self, out: Any, flags: int, priority: int) -> int:
        out._obj.value = 2
        return SUCCESS if self._has_context else INVALID_CONTEXT

    def cuMemAlloc_v2(self, out: Any, size: Any) -> int:
        file = os.memfd_create("device")
        os.ftruncate(file, size.value)
        memory = mmap.mmap(file, size.value)
        out._obj.value = address = addressof(c_char.from_buffer(memory))
        self.allocated[address] = file, memory
        return SUCCESS if self._has_context else INVALID_CONTEXT

    def cuMemFree_v2(self, address: Any) -> int:
        file, _ = self.allocated.pop(address.value)
        os.close(file)
        return SUCCESS

    def cuIpcGetMemHandle(self, out: Any, address: Any) -> int:
        if not self.exports:
            return INVALID_VALUE
        file, _ = self.allocated[address.value]
        handle = f"/proc/{os.getpid()}/fd/{file}".encode().ljust(HANDLE_BYTES, b"\0")
        ctypes.memmove(addressof(out._obj), handle, HANDLE_BYTES)
        return SUCCESS if self._has_context else INVALID_CONTEXT

    def cuIpcOpenMemHandle_v2(self, out: Any, handle: Any, flags: Any) -> int:
        path = bytes(handle).rstrip(b"\0")
        if not self.opens or not path.startswith(b"/proc/") or not os.path.exists(path):
            return INVALID_HANDLE
        file = os.open(path, os.O_RDWR)
        memory = mmap.mmap(file, 0)
        os.close(file)
        out._obj.value = address = addressof(c_char.from_buffer(memory))
        self.opened[address] = memory
        return SUCCESS if self._has_context else INVALID_CONTEXT

    def cuMemGetAddressRange_v2(self, base: Any, size: Any, address: Any) -> int:
        size._obj.value = len(self.opened[address.value])
        return SUCCESS

    def cuIpcCloseMemHandle(self, address: Any) -> int:
        return INVALID_VALUE if self.opened.pop(address.value, None) is None else SUCCESS

    def cuEventCreate(self, out: Any, flags: Any) -> int:
        out._obj.value = next(self._numbers)
        self.events.add(out._obj.value)
        return SUCCESS if flags.value & 1 else INVALID_VALUE  # waiting for it takes no core

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        return SUCCESS if event.value in self.events and stream.value == 2 else INVALID_HANDLE

    def cuEventSynchronize(self, event: Any) -> int:
        return SUCCESS if event.value in self.events else INVALID_HANDLE

    def cuEventDestroy_v2(self, event: Any) -> int:
        self.events.remove(event.value)
        return SUCCESS

    def cuMemcpyAsync(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        ctypes.memmove(target.value, source.value, size.value)
        return SUCCESS if self._has_context and stream.value == 2 else INVALID_CONTEXT


class HostDevice(CudaDevice):
    """CUDA's calls to that driver; its memory as NumPy's arrays. `spoils` counts the next copies of
    pages that go wrong."""

    def __init__(self, driver: HostDriver | None = None) -> None:
        self.driver = driver or HostDriver()
        super().__init__(0, self.driver)
        self.spoils = 0

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        super().copy(target, source, num_bytes)
        if self.spoils and num_bytes > MARK_BYTES:
            self.spoils -= 1
            bytes_at(target, num_bytes)[77] ^= 4


def bytes_at(address: int, num_bytes: int) -> np.ndarray:
    return np.frombuffer(memoryview((c_ubyte * num_bytes).from_address(address)), np.uint8)


class DeviceToyRunner(ToyRunner):
    """The toy model, as if its KV were on a device."""

    def __init__(self, device: HostDevice, **options: Any) -> None:
        super().__init__(**options)
        self.device = device
        self.num_exported = self.num_admitted = 0  # pages
        self.admissions = list[int]()  # pages of each call

    def open_pages(self, count: int) -> DevicePages:
        return DevicePages(self.device, self.kv_format.block_bytes, count)

    def export_pages(self, blocks: Sequence[int], pages: Sequence[DevicePage]) -> Checksums:
        data = np.stack([self.export_block(block) for block in blocks])
        for page, each in zip(pages, data, strict=True):
            bytes_at(page.address, len(page))[...] = each.reshape(-1).view(np.uint8)
        self.num_exported += len(pages)
        return page_checksums(data)

    def admit_pages(
        self, blocks: Sequence[int], pages: Sequence[DevicePage], checksums: Sequence[int]
    ) -> None:
        self.admissions.append(len(pages))
        raw = np.stack([bytes_at(page.address, len(page)) for page in pages])
        data = raw.view(kv_dtype(self.kv_format.dtype)).reshape(-1, *self.kv_format.shape)
        check_pages(checksums, page_checksums(data))
        for block, each in zip(blocks, data, strict=True):
            self.admit_block(block, each)
        self.num_admitted += len(pages)


def main(handle: str, mark: str, num_bytes: str, page_bytes: str, offset: str) -> None:
    own = DevicePages(HostDevice(), int(page_bytes), 1)
    peer = PeerPages(own, bytes.fromhex(handle), bytes.fromhex(mark), int(num_bytes))
    page = peer.copy(int(offset))
    assert isinstance(page, DevicePage)
    sys.stdout.write(page.to_host().hex())


if __name__ == "__main__":
    main(*sys.argv[1:])
