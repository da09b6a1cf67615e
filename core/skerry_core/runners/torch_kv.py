"""Paged KV of a Torch device: `[layer, k|v, block, kv_head, 64, head_dim]` in one tensor.

A canonical block is one slice of it. One block more than the pool's is scratch: padding writes
there. With `is_narrow` keys and values are e4m3fn, each head of each token with a scale of its own,
and blocks leave and arrive in the model's dtype all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skerry_core.config import ConfigError, KVFormat
from skerry_core.runners.checks import check_block, check_block_data

FP8_CAPABILITY = (8, 9)  # Ada; Hopper is (9, 0)


class PagedKV:
    """`kv` and, when narrow, `scales` f32[layer, k|v, block, kv_head, 64]."""

    def __init__(
        self, kv_format: KVFormat, num_blocks: int, device: torch.device, dtype: torch.dtype,
        *, has_triton: bool, is_narrow: bool,
    ) -> None:  # fmt: skip
        """Raises ConfigError where the device has no 8-bit floats."""
        if is_narrow and not has_triton:
            raise ConfigError("KV in 8 bits needs Triton's kernels")
        if is_narrow and device.type == "cuda":
            capability = torch.cuda.get_device_capability(device)
            if capability < FP8_CAPABILITY:
                raise ConfigError(f"KV in 8 bits needs compute capability 8.9, got {capability}")
        self.num_blocks = num_blocks
        self._format = kv_format
        self._dtype = dtype
        self._has_triton = has_triton
        layers, _, heads, size, width = kv_format.shape
        shape = (layers, 2, num_blocks + 1, heads, size, width)
        stored = torch.float8_e4m3fn if is_narrow else dtype
        self.kv = torch.zeros(shape, dtype=torch.uint8 if is_narrow else dtype, device=device)
        self.kv = self.kv.view(stored)
        self.scales = torch.zeros(shape[:-1], device=device) if is_narrow else None

    def layer(self, index: int) -> tuple[Tensor, Tensor | None]:
        """One layer's KV [2, N + 1, Hk, 64, D], and its scales."""
        return self.kv[index], None if self.scales is None else self.scales[index]

    def export_blocks(self, blocks: Sequence[int]) -> NDArray[np.generic]:
        """Copies in canonical form, [n, *kv_format.shape]. Raises ValueError."""
        for block in blocks:
            check_block(block, self.num_blocks)
        told = self._gathered(blocks)
        host = torch.empty(told.shape, dtype=told.dtype, pin_memory=told.is_cuda)
        host.copy_(told)
        if self._dtype is torch.bfloat16:  # NumPy has no bfloat16: its bits travel as uint16
            return host.view(torch.uint16).numpy()
        return host.numpy()

    def admit_blocks(self, blocks: Sequence[int], data: NDArray[np.generic]) -> None:
        """Overwrite blocks from [n, *kv_format.shape]. Raises ValueError."""
        for block, each in zip(blocks, data, strict=True):
            check_block(block, self.num_blocks)
            check_block_data(each, self._format)
        host = torch.empty(data.shape, dtype=self._dtype, pin_memory=self.kv.is_cuda)
        self._bits(host)[...] = data
        self._scatter(blocks, host.to(self.kv.device, non_blocking=True))

    def _bits(self, host: Tensor) -> NDArray[Any]:
        is_bfloat16 = self._dtype is torch.bfloat16
        return (host.view(torch.uint16) if is_bfloat16 else host).numpy()

    def _gathered(self, blocks: Sequence[int]) -> Tensor:
        if not self._has_triton:
            return self.kv[:, :, list(blocks)].movedim(2, 0)
        from skerry_core.kernels import triton_blocks

        shape = (len(blocks), *self._format.shape)
        told = torch.empty(shape, dtype=self._dtype, device=self.kv.device)
        triton_blocks.gather(self.kv, self._index(blocks), told, self.scales)
        return told

    def _scatter(self, blocks: Sequence[int], data: Tensor) -> None:
        if not self._has_triton:
            self.kv[:, :, list(blocks)] = data.movedim(0, 2)
            return
        from skerry_core.kernels import triton_blocks

        triton_blocks.scatter(self.kv, self._index(blocks), data, self.scales)

    def _index(self, blocks: Sequence[int]) -> Tensor:
        return torch.tensor(blocks, dtype=torch.int32, device=self.kv.device)
