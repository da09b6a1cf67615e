"""Attention over paged KV in plain Torch. One layer's KV is `[2, N, Hk, 64, D]`: keys, values.

StepRows of one token attend together, padded to the longest context; longer ones attend one by one.
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

from skerry_core.batch import ForwardBatch
from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.torch.torch_ops import capped


@dataclass(frozen=True, slots=True)
class StepRows:
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
    def of(cls, batch: ForwardBatch, device: torch.device) -> StepRows:
        """Make the index tensors of a batch, which every layer uses."""

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


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """What a layer's attention is like."""

    scale: float
    window: int | None = None
    cap: float | None = None  # of scores, before the mask
    sinks: Tensor | None = None  # [H]


def store(kv: Tensor, blocks: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Write `k`, `v` [T, Hk, D] to their slots of one layer's KV."""
    kv[0][blocks, :, slots] = k
    kv[1][blocks, :, slots] = v


def attend(kv: Tensor, rows: StepRows, q: Tensor, form: AttentionForm) -> Tensor:
    """Attend with every token to its row's context, its own KV stored: q [T, H, D] → [T, H, D]."""
    out = torch.empty_like(q)
    if len(rows.decode_rows):
        out[rows.decode_tokens] = _attend_padded(
            kv,
            rows.tables[rows.decode_rows],
            rows.positions[rows.decode_tokens][:, None],
            q[rows.decode_tokens][:, None],
            form,
        )[:, 0]
    for row in rows.prefill_rows:
        part = slice(rows.starts[row], rows.starts[row + 1])
        tables = rows.tables[row : row + 1, : rows.widths[row]]
        out[part] = _attend_padded(kv, tables, rows.positions[None, part], q[None, part], form)[0]
    return out


def _attend_padded(
    kv: Tensor,  # [2, N, Hk, 64, D]
    tables: Tensor,  # i64[B, M]
    positions: Tensor,  # i64[B, n]
    q: Tensor,  # [B, n, H, D]
    form: AttentionForm,
) -> Tensor:  # [B, n, H, D]
    """Attend with B rows of n tokens to all of their tables' slots that they may see."""
    at = torch.arange(tables.shape[1] * BLOCK_SIZE, device=q.device)
    visible = at <= positions[:, :, None]  # [B, n, M * 64]
    if form.window is not None:
        visible &= at > positions[:, :, None] - form.window
    unseen = ~visible.any(1)[:, None, :, None]
    keys, values = (_gathered(part, tables).masked_fill(unseen, 0) for part in kv)
    attended = _mixed(q.transpose(1, 2), keys, values, visible[:, None], form)
    return attended.transpose(1, 2)


def _mixed(
    q: Tensor,  # [B, H, n, D]
    keys: Tensor,  # [B, Hk, S, D]
    values: Tensor,  # [B, Hk, S, D]
    visible: Tensor,  # bool[B, 1, n, S]
    form: AttentionForm,
) -> Tensor:  # [B, H, n, D]
    if form.cap is None and form.sinks is None:
        return functional.scaled_dot_product_attention(
            q, keys, values, attn_mask=visible, scale=form.scale, enable_gqa=True
        )
    group = q.shape[1] // keys.shape[1]
    keys, values = (each.repeat_interleave(group, 1) for each in (keys, values))
    scores = capped((q @ keys.transpose(2, 3)).float() * form.scale, form.cap)
    scores = scores.masked_fill(~visible, -torch.inf)
    if form.sinks is None:
        return scores.softmax(-1).to(values.dtype) @ values
    sinks = form.sinks.float()[:, None, None].expand(len(q), -1, q.shape[2], 1)
    shares = torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
    return shares.to(values.dtype) @ values


def _gathered(cache: Tensor, tables: Tensor) -> Tensor:
    """Put the blocks of each row side by side: [N, Hk, 64, D] by i64[B, M] → [B, Hk, M * 64, D]."""
    picked = cache[tables].transpose(1, 2)
    return picked.reshape(picked.shape[0], picked.shape[1], -1, picked.shape[-1])
