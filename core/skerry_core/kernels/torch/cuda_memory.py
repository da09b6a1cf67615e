"""Memory of a CUDA device that other processes of the host can open: calls of the driver's own API.

Torch hands out parts of larger allocations, which have no handles of their own; so this memory is
allocated beside it. The driver's library is there wherever a driver is, whatever Torch was built
with. All calls are made in the device's primary context, which is Torch's too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import contextmanager
from ctypes import addressof, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from skerry_core.device_pages import HANDLE_BYTES

_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: memory of another device too
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not ordered with the default stream, where steps run
_BLOCKING = 1 | 2  # CU_EVENT_BLOCKING_SYNC, which takes no core, and _DISABLE_TIMING
_FIRST = -1  # priority: before the steps' kernels
_GRANULE = 2 << 20  # bytes: who opens memory opens all that shares one with it


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * HANDLE_BYTES)]


class CudaDevice:
    """A `Device` of CUDA, with a stream of its own."""

    def __init__(self, index: int, driver: Any = None) -> None:
        """`driver` is the host's libcuda unless given. Raises OSError without one, or without such
        a device."""
        self._driver = driver or ctypes.CDLL("libcuda.so.1")
        device, self._context, self._stream = c_int(), c_void_p(), c_void_p()
        self._call("cuInit", c_uint(0))
        self._call("cuDeviceGet", byref(device), c_int(index))
        self._call("cuDevicePrimaryCtxRetain", byref(self._context), device)
        with self._current():
            self._call("cuStreamCreateWithPriority", byref(self._stream), _NON_BLOCKING, _FIRST)

    def allocate(self, num_bytes: int) -> tuple[int, bytes]:
        address, handle = c_uint64(), _Handle()
        size = -(-num_bytes // _GRANULE) * _GRANULE
        with self._current():
            self._call("cuMemAlloc_v2", byref(address), c_size_t(size))
            try:
                self._call("cuIpcGetMemHandle", byref(handle), address)
            except OSError:
                self._call("cuMemFree_v2", address)
                raise
        return address.value, bytes(handle)

    def open(self, handle: bytes) -> tuple[int, int]:
        """Open a handle, not the process's own: CUDA refuses that one."""
        address, size = c_uint64(), c_size_t()
        named = _Handle.from_buffer_copy(handle)
        with self._current():
            self._call("cuIpcOpenMemHandle_v2", byref(address), named, c_uint(_LAZY_PEER_ACCESS))
            try:
                self._call("cuMemGetAddressRange_v2", None, byref(size), address)
            except OSError:
                self._call("cuIpcCloseMemHandle", address)
                raise
        return address.value, size.value

    def close(self, address: int) -> None:
        with self._current():
            self._call("cuIpcCloseMemHandle", c_uint64(address))

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        done = c_void_p()
        with self._current():
            self._call("cuEventCreate", byref(done), c_uint(_BLOCKING))
            try:
                self._call(
                    "cuMemcpyAsync", c_uint64(target), c_uint64(source), c_size_t(num_bytes),
                    self._stream,
                )  # fmt: skip
                self._call("cuEventRecord", done, self._stream)
                self._call("cuEventSynchronize", done)
            finally:
                self._call("cuEventDestroy_v2", done)

    def read(self, source: int, num_bytes: int) -> bytearray:
        data = bytearray(num_bytes)
        self.copy(addressof(c_char.from_buffer(data)), source, num_bytes)
        return data

    def write(self, target: int, data: bytes) -> None:
        held = bytearray(data)
        self.copy(target, addressof(c_char.from_buffer(held)), len(held))

    @contextmanager
    def _current(self) -> Generator[None]:
        """Make calls on the device, whatever this thread does else."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", byref(c_void_p()))

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status:
            message = c_char_p()
            self._driver.cuGetErrorName(status, byref(message))
            raise OSError(f"{name}: {(message.value or b'unknown error').decode()}")
