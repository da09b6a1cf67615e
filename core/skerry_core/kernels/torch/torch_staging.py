"""Between the host and a device: many small arrays in one transfer, and back, without waiting; and
large ones as fast as they go.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skerry_core.batch import Int32

_ALIGNMENT = 16  # bytes: what kernels are compiled for
_THREADS = 4  # one core copies about 8 GB/s, a bus of the fifth generation takes 50
_PIECE = 16 << 20  # bytes, of each pinned buffer


def send(
    arrays: Sequence[NDArray[Any]], device: torch.device, into: Tensor | None = None
) -> list[Tensor]:
    """Copy arrays to the device; return views of one buffer.

    With `into`, u8[n] on the device, they lie there from its start: arrays of the same shapes at
    the same addresses, as a captured graph wants them. Pinned memory on the way lets the call
    return before the copy is done; what uses the tensors comes after it on the same stream.
    """
    sizes = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]
    offsets = np.cumsum([0, *sizes]).tolist()
    staged = torch.empty(offsets[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    bytes_of = staged.numpy()
    for array, start in zip(arrays, offsets, strict=False):
        bytes_of[start : start + array.nbytes] = (
            np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        )
    if into is None:
        sent = staged.to(device, non_blocking=True)
    else:
        sent = into[: len(staged)]
        sent.copy_(staged, non_blocking=True)
    return [
        sent[start : start + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for array, start in zip(arrays, offsets, strict=False)
    ]


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to the device, without waiting for it."""
    host = torch.from_numpy(np.ascontiguousarray(array))
    # Only a copy from pinned memory does not wait for what the device does.
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def feed(token_ids: Tensor, feeds: Int32 | None, made: Tensor) -> None:
    """Put tokens that the step before made into their places in `token_ids` [T].

    `feeds` is `Batch.feeds`; `made` i64[S] has -1 where no token was possible. Such a sequence is
    over, but its row runs: with any token.
    """
    if feeds is not None:
        places, samples = send(list(feeds.T.astype(np.int64)), token_ids.device)
        token_ids.index_copy_(0, places, made[samples].clamp(min=0).to(token_ids.dtype))


class HostFetch:
    """Tensors on their way to the host; the device goes on."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._tensors = list(tensors)
        if tensors[0].is_cuda:
            self._tensors = [torch.empty_like(t, device="cpu", pin_memory=True) for t in tensors]
            for host, tensor in zip(self._tensors, tensors, strict=True):
                host.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event(blocking=True)  # waits without taking a core
            self._arrived.record(torch.cuda.current_stream(tensors[0].device))

    def wait(self) -> list[Tensor]:
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tensors


class Streamer:
    """Copies bytes of the host to a device, in pieces, several at a time: threads copy them into
    pinned buffers, each with a CUDA stream that carries them over.

    `put` is for one thread at a time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="to-device")
        self._is_cuda = device.type == "cuda"
        self._buffers: SimpleQueue[tuple[Tensor, torch.cuda.Stream]] = SimpleQueue()
        for _ in range(_THREADS if self._is_cuda else 0):
            buffer = torch.empty(_PIECE, dtype=torch.uint8, pin_memory=True)
            self._buffers.put((buffer, torch.cuda.Stream(device)))

    def put(self, data: NDArray[np.uint8]) -> Tensor:
        """Return u8[n] on the device, whole when this returns; waits for the current stream too."""
        target = torch.empty(len(data), dtype=torch.uint8, device=self._device)
        if self._is_cuda:  # the memory may be of a tensor that a kernel still reads
            torch.cuda.current_stream(self._device).synchronize()
        size = max(min(_PIECE, -(-len(data) // _THREADS)), 1)
        pieces = [slice(start, start + size) for start in range(0, len(data), size)]
        list(self._threads.map(lambda piece: self._copy(target[piece], data[piece]), pieces))
        return target

    @torch.inference_mode()  # of this thread; the tensor may come from such a mode
    def _copy(self, place: Tensor, piece: NDArray[np.uint8]) -> None:
        if not self._is_cuda:
            place.numpy()[...] = piece
            return
        buffer, stream = self._buffers.get()
        try:
            staged = buffer[: len(piece)]
            staged.numpy()[...] = piece
            with torch.cuda.stream(stream):
                place.copy_(staged, non_blocking=True)
            stream.synchronize()  # the buffer is free again; other threads go on meanwhile
        finally:
            self._buffers.put((buffer, stream))

    def close(self) -> None:
        """End the threads. Idempotent."""
        self._threads.shutdown()
