"""Paged KV of a Torch device: `[layer, k|v, block, kv_head, 64, head_dim]` in one tensor.

A canonical block is one slice of it. One block more than the pool's is scratch: padding writes
there. When narrow, keys and values are in 8 bits, each head of each token with a scale of its own,
and blocks leave and arrive in the model's dtype all the same.

Blocks are exported beside the steps, on a stream of their own: what is exported was computed by
steps that are over. They are admitted between steps, and their bytes cross beside the device's
work. Those that another process reads on the device (`device_pages`) never come to the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skerry_core.config import ConfigError, KVFormat
from skerry_core.device_pages import DevicePage, DevicePages
from skerry_core.kernels.torch.quantized import FP8_CAPABILITY, NARROW_DTYPES, Narrow, NarrowWeights
from skerry_core.kernels.torch.torch_staging import HostFetch, Streamer, send
from skerry_core.page_checksums import Checksums, check_pages, page_checksums
from skerry_core.runners.checks import check_admitted, check_blocks


class PagedKV:
    """`kv` and, when narrow, `scales` f32[layer, k|v, block, kv_head, 64]."""

    def __init__(
        self, kv_format: KVFormat, num_blocks: int, device: torch.device, dtype: torch.dtype,
        *, has_triton: bool, narrow: Narrow | None,
    ) -> None:  # fmt: skip
        """Raises ConfigError where the device cannot keep it so."""
        check_narrow("KV", narrow, device, has_triton=has_triton)
        self.num_blocks = num_blocks
        self._format = kv_format
        self._dtype = dtype
        self._has_triton = has_triton
        layers, _, heads, size, width = kv_format.shape
        shape = (layers, 2, num_blocks + 1, heads, size, width)
        stored = dtype if narrow is None else NARROW_DTYPES[narrow]
        raw = torch.zeros(shape, dtype=dtype if narrow is None else torch.uint8, device=device)
        self.kv = raw.view(stored)
        self.scales = None if narrow is None else torch.zeros(shape[:-1], device=device)
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._admitted: torch.cuda.Event | None = None  # when the last blocks were
        self._streamer = Streamer(device)

    def layer(self, index: int) -> tuple[Tensor, Tensor | None]:
        """Return one layer's KV [2, N + 1, Hk, 64, D], and its scales."""
        return self.kv[index], None if self.scales is None else self.scales[index]

    def export_blocks(self, blocks: Sequence[int]) -> tuple[NDArray[np.generic], Checksums | None]:
        """Copy blocks to canonical form, [n, *kv_format.shape]; with Triton's kernels return their
        checksums too. Raises ValueError."""
        with self._exporting(blocks):
            if not self._has_triton:
                (host,) = HostFetch([self.kv[:, :, list(blocks)].movedim(2, 0)]).wait()
                return self._bits(host.contiguous()), None
            from skerry_core.kernels.triton.blocks import addresses_of

            shape = (len(blocks), *self._format.shape)
            data = torch.empty(shape, dtype=self._dtype, device=self.kv.device)
            host, sums = HostFetch([data, self._gather(blocks, addresses_of(data))]).wait()
        return self._bits(host), sums.numpy().view(np.uint64)

    def admit_blocks(
        self,
        blocks: Sequence[int],
        data: NDArray[np.generic],
        checksums: Checksums | None = None,
    ) -> None:
        """Overwrite blocks from [n, *kv_format.shape], once all bytes have arrived and, with
        checksums, have been looked at there. Raises ValueError, or KVChecksumError."""
        check_admitted(blocks, data, self.num_blocks, self._format)
        with self._beside_steps():
            arrived = self._streamer.put(np.ascontiguousarray(data).reshape(-1).view(np.uint8))
            arrived = arrived.view(self._dtype).view(data.shape)
            if checksums is not None:
                check_pages(checksums, self._checksums(arrived))
        self._write(blocks, arrived)

    def open_pages(self, count: int) -> DevicePages:
        """Open pages of one block each. Raises OSError where others could not read them."""
        if self._copies is None or not self._has_triton:
            raise OSError("KV is not moved by kernels of a CUDA device")
        from skerry_core.kernels.torch.cuda_memory import CudaDevice

        return DevicePages(CudaDevice(self.kv.device.index), self._format.block_bytes, count)

    def export_pages(self, blocks: Sequence[int], pages: Sequence[DevicePage]) -> Checksums:
        """Copy blocks in canonical form into pages, which are whole when this returns; return
        their checksums: all in one launch. Raises ValueError."""
        with self._exporting(blocks):
            (host,) = HostFetch([self._gather(blocks, _addresses(blocks, pages))]).wait()
        checksums: Checksums = host.numpy().view(np.uint64)
        return checksums

    def admit_pages(
        self, blocks: Sequence[int], pages: Sequence[DevicePage], checksums: Sequence[int]
    ) -> None:
        """Overwrite blocks from pages, which may be used again when this returns, all or none.
        Raises ValueError, or KVChecksumError."""
        from skerry_core.kernels.triton import blocks as triton_blocks

        check_blocks(blocks, self.num_blocks)
        with self._beside_steps():
            (where,) = send([_addresses(blocks, pages)], self.kv.device)
            shape = (len(blocks), *self._format.shape)
            arrived = torch.empty(shape, dtype=self._dtype, device=self.kv.device)
            (sums,) = HostFetch([triton_blocks.collect(where, arrived)]).wait()
            check_pages(checksums, sums.numpy().view(np.uint64))
        self._write(blocks, arrived)

    def close(self) -> None:
        """End the threads that bring blocks here."""
        self._streamer.close()

    def _exporting(self, blocks: Sequence[int]) -> AbstractContextManager[object]:
        """Work beside the steps, after what was admitted. Raises ValueError."""
        check_blocks(blocks, self.num_blocks)
        if self._copies is not None and self._admitted is not None:
            self._copies.wait_event(self._admitted)
        return self._beside_steps()

    def _write(self, blocks: Sequence[int], arrived: Tensor) -> None:
        """Overwrite blocks from a tensor that is whole, in their turn among the steps."""
        self._scatter(blocks, arrived)
        if self._copies is None:
            return
        steps = torch.cuda.current_stream(self.kv.device)
        arrived.record_stream(steps)
        self._admitted = torch.cuda.Event()
        self._admitted.record(steps)

    def _checksums(self, arrived: Tensor) -> Checksums:
        if not self._has_triton:
            return page_checksums(self._bits(arrived.cpu()))
        from skerry_core.kernels.triton import blocks as triton_blocks

        (sums,) = HostFetch([triton_blocks.checksums(arrived)]).wait()
        found: Checksums = sums.numpy().view(np.uint64)
        return found

    def _beside_steps(self) -> AbstractContextManager[object]:
        return nullcontext() if self._copies is None else torch.cuda.stream(self._copies)

    def _bits(self, host: Tensor) -> NDArray[Any]:
        """Return what is on the host; NumPy has no bfloat16, which travels as uint16."""
        is_bfloat16 = self._dtype is torch.bfloat16
        return (host.view(torch.uint16) if is_bfloat16 else host).numpy()

    def _gather(self, blocks: Sequence[int], addresses: NDArray[np.int64]) -> Tensor:
        """Copy blocks to addresses i64[n]; return their checksums."""
        from skerry_core.kernels.triton import blocks as triton_blocks

        index, where = send([np.array(blocks, np.int32), addresses], self.kv.device)
        return triton_blocks.gather(self.kv, index, where, self._dtype, self.scales)

    def _scatter(self, blocks: Sequence[int], data: Tensor) -> None:
        if not self._has_triton:
            self.kv[:, :, list(blocks)] = data.movedim(0, 2)
            return
        from skerry_core.kernels.triton import blocks as triton_blocks

        addresses = triton_blocks.addresses_of(data)
        index, where = send([np.array(blocks, np.int32), addresses], self.kv.device)
        triton_blocks.scatter(self.kv, index, where, self._dtype, self.scales)


def _addresses(blocks: Sequence[int], pages: Sequence[DevicePage]) -> NDArray[np.int64]:
    """Return where pages lie, one for each block. Raises ValueError."""
    if len(blocks) != len(pages):
        raise ValueError(f"{len(blocks)} blocks in {len(pages)} pages")
    return np.array([page.address for page in pages], np.int64)


def check_narrow(
    what: str, narrow: NarrowWeights | None, device: torch.device, *, has_triton: bool
) -> None:
    """Raise ConfigError where Triton's kernels, or the device, cannot take so few bits."""
    if narrow is not None and not has_triton:
        raise ConfigError(f"{what} in {narrow} needs Triton's kernels")
    if narrow == "fp8" and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < FP8_CAPABILITY:
            raise ConfigError(f"{what} in fp8 needs compute capability 8.9, got {capability}")
