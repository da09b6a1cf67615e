"""Attention over paged KV in plain Torch. One layer's KV is `[2, N, Hk, 64, D]`: keys, values.

Rows of one token attend together, padded to the longest context; longer ones attend one by one.
What a row does not see is read as zero, since idle blocks may hold anything, NaN included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from skerry_core.batch import Batch
from skerry_core.config import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Rows:
    """Where each of a step's tokens belongs. Tensors live on the device, lists on the host."""

    blocks: Tensor  # i64[T]         block that each token's KV is written to
    slots: Tensor  # i64[T]          its slot there
    positions: Tensor  # i64[T]
    tables: Tensor  # i64[R, M]      block tables as wide as the longest context, unused entries 0
    contexts: Tensor  # i64[R]       tokens visible to the row's last token
    starts: list[int]  # [R + 1]     first token of each row
    widths: list[int]  # [R]         blocks of each row's context
    decode_rows: Tensor  # i64[d]    rows of one token
    decode_tokens: Tensor  # i64[d]  their tokens
    prefill_rows: list[int]  # rows of several tokens

    @classmethod
    def of(cls, batch: Batch, device: torch.device) -> Rows:
        """Index tensors of a batch, made once and used by every layer."""

        def put(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array.astype(np.int64)).to(device, non_blocking=True)

        starts, lengths = batch.query_start, np.diff(batch.query_start)
        owners = np.repeat(np.arange(batch.num_rows), lengths)
        contexts = batch.positions[starts[1:] - 1] + 1
        widths = -(-contexts // BLOCK_SIZE)
        decode = np.flatnonzero(lengths == 1)
        return cls(
            blocks=put(batch.block_tables[owners, batch.positions // BLOCK_SIZE]),
            slots=put(batch.positions % BLOCK_SIZE),
            positions=put(batch.positions),
            tables=put(np.maximum(batch.block_tables[:, : widths.max(initial=1)], 0)),
            contexts=put(contexts),
            starts=starts.tolist(),
            widths=widths.tolist(),
            decode_rows=put(decode),
            decode_tokens=put(starts[decode]),
            prefill_rows=np.flatnonzero(lengths > 1).tolist(),
        )


def store(kv: Tensor, blocks: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Write `k`, `v` [T, Hk, D] to their slots of one layer's KV."""
    kv[0][blocks, :, slots] = k
    kv[1][blocks, :, slots] = v


def attend(kv: Tensor, rows: Rows, q: Tensor, window: int | None) -> Tensor:
    """Every token against its row's context, its own KV stored before: q [T, H, D] → [T, H, D]."""
    out = torch.empty_like(q)
    if len(rows.decode_rows):
        out[rows.decode_tokens] = _attend_padded(
            kv,
            rows.tables[rows.decode_rows],
            rows.positions[rows.decode_tokens][:, None],
            q[rows.decode_tokens][:, None],
            window,
        )[:, 0]
    for row in rows.prefill_rows:
        part = slice(rows.starts[row], rows.starts[row + 1])
        tables = rows.tables[row : row + 1, : rows.widths[row]]
        out[part] = _attend_padded(kv, tables, rows.positions[None, part], q[None, part], window)[0]
    return out


def _attend_padded(
    kv: Tensor,  # [2, N, Hk, 64, D]
    tables: Tensor,  # i64[B, M]
    positions: Tensor,  # i64[B, n]
    q: Tensor,  # [B, n, H, D]
    window: int | None,
) -> Tensor:  # [B, n, H, D]
    """B rows of n tokens, each row against all of its table's slots that it may see."""
    keys = torch.arange(tables.shape[1] * BLOCK_SIZE, device=q.device)
    visible = keys <= positions[:, :, None]  # [B, n, M * 64]
    if window is not None:
        visible &= keys > positions[:, :, None] - window
    unseen = ~visible.any(1)[:, None, :, None]
    attended = functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        _gathered(kv[0], tables).masked_fill(unseen, 0),
        _gathered(kv[1], tables).masked_fill(unseen, 0),
        attn_mask=visible[:, None],
        enable_gqa=True,
    )
    return attended.transpose(1, 2)


def _gathered(cache: Tensor, tables: Tensor) -> Tensor:
    """Blocks of each row side by side: [N, Hk, 64, D] by i64[B, M] → [B, Hk, M * 64, D]."""
    picked = cache[tables].transpose(1, 2)
    return picked.reshape(picked.shape[0], picked.shape[1], -1, picked.shape[-1])
