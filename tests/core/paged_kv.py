"""Paged KV made by hand, and what the NumPy reference says of attention over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from skerry_core.batch import Float32, Int32
from skerry_core.config import BLOCK_SIZE

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Where Triton's kernels run: on the CPU in its interpreter, which `tests/conftest.py` turns on."""


@dataclass(frozen=True)
class PagedRows:
    """Rows whose last tokens attend to all before them; every idle slot holds NaN."""

    heads: int
    kv_heads: int
    width: int
    contexts: Sequence[int]  # tokens of each row
    counts: Sequence[int]  # of which these are queries, the last ones
    q: Tensor  # [T, H + 2 Hk, D], of which the first H heads are queries
    kv: Tensor  # [2, N, Hk, 64, D]
    tables: Int32  # i32[R, M]
    context: tuple[Tensor, ...]  # [2, n, Hk, D] of each row

    @property
    def positions(self) -> Int32:
        pairs = zip(self.contexts, self.counts, strict=True)
        return np.concatenate([np.arange(n - c, n, dtype=np.int32) for n, c in pairs])

    @property
    def owners(self) -> Int32:
        return np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)

    def attended(self, window: int | None) -> Float32:
        """f32[T, H, D]: softmax attention in NumPy's float64."""
        out = np.empty((len(self.positions), self.heads, self.width), np.float32)
        for token, (position, row) in enumerate(zip(self.positions, self.owners, strict=True)):
            first = max(0, position - window + 1) if window else 0
            context = self.context[row][:, first : position + 1].double().cpu().numpy()
            keys, values = np.repeat(context, self.heads // self.kv_heads, axis=2)
            query = self.q[token, : self.heads].double().cpu().numpy() * self.width**-0.5
            scores = np.einsum("hd,khd->hk", query, keys)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            out[token] = np.einsum("hk,khd->hd", shares, values)
        return out


def paged_rows(
    *, heads: int, kv_heads: int, width: int, contexts: Sequence[int], counts: Sequence[int],
    dtype: torch.dtype, seed: int,
) -> PagedRows:  # fmt: skip
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE, dtype)

    lengths = [-(-context // BLOCK_SIZE) for context in contexts]
    num_blocks = sum(lengths) + 2
    order, used = rng.permutation(num_blocks), 0
    tables = np.full((len(contexts), max(lengths)), -1, np.int32)
    kv = torch.full((2, num_blocks, kv_heads, BLOCK_SIZE, width), torch.nan)
    kv = kv.to(DEVICE, dtype)
    context = tuple(random(2, count, kv_heads, width) for count in contexts)
    for row, length in enumerate(lengths):
        tables[row, :length] = order[used : used + length]
        used += length
        for p in range(contexts[row]):
            kv[:, tables[row, p // BLOCK_SIZE], :, p % BLOCK_SIZE] = context[row][:, p]
    q = random(sum(counts), heads + 2 * kv_heads, width)
    return PagedRows(heads, kv_heads, width, contexts, counts, q, kv, tables, context)
