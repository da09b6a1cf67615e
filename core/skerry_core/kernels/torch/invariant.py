"""A decoder step whose bits do not depend on the batch: every operation has one fixed shape.

Tokens run in tiles of 16, padded. So each product, sum and exponential is always the same kernel
on the same shape, and a token's bits can depend only on its place in the tile: `check_products`
tries that out on the device, with the shapes of the model, and refuses where they do. Exponentials
are our own (`torch_math`), because Torch's differ between a vector and its remainder.

Attention goes block by block of 64 slots, in order. A block that a token does not see leaves its
running maximum, sum and accumulator untouched, so what shares a tile with it cannot matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from skerry_core.batch import ForwardBatch
from skerry_core.config import BLOCK_SIZE, Activation, ConfigError
from skerry_core.kernels.activations import CLAMP, CLAMPED_SLOPE, GELU_CUBIC, GELU_SLOPE
from skerry_core.kernels.torch import torch_ops
from skerry_core.kernels.torch.attention import AttentionForm
from skerry_core.kernels.torch.quantized import Matrix
from skerry_core.kernels.torch.torch_math import exp_f32
from skerry_core.kernels.torch.torch_ops import Ops, add_rms_norm, capped, rms_norm, rotate

TILE = 16  # tokens


@dataclass(frozen=True, slots=True)
class Tile:
    """Up to 16 tokens of a step in flat order, and padding whose KV goes to the scratch block."""

    num_tokens: int
    token_ids: Tensor  # i64[16]
    positions: Tensor  # i64[16]
    blocks: Tensor  # i64[16]     block that each token's KV is written to
    slots: Tensor  # i64[16]
    tables: Tensor  # i64[16, M]  every token's block table; what is not its row's is scratch


def tiles(batch: ForwardBatch, token_ids: Tensor, scratch: int) -> Iterator[Tile]:
    """Cut a step of tokens i64[T] into tiles. They run in order: a token sees those before it."""
    device = token_ids.device
    owners = np.repeat(np.arange(batch.num_rows), np.diff(batch.query_start))
    for start in range(0, batch.num_tokens, TILE):
        part = slice(start, min(start + TILE, batch.num_tokens))
        positions = _padded(batch.positions[part], 0)
        used = int(positions.max()) // BLOCK_SIZE + 1
        tables = _padded(batch.block_tables[owners[part], :used], scratch)
        tables[tables < 0] = scratch
        blocks = tables[np.arange(TILE), positions // BLOCK_SIZE]
        yield Tile(
            num_tokens=part.stop - start,
            token_ids=functional.pad(token_ids[part], (0, TILE - (part.stop - start))),
            positions=torch.from_numpy(positions).to(device),
            blocks=torch.from_numpy(blocks).to(device),
            slots=torch.from_numpy(positions % BLOCK_SIZE).to(device),
            tables=torch.from_numpy(tables).to(device),
        )


def _padded(array: NDArray[Any], value: int) -> NDArray[np.int64]:
    """Fill up to 16 rows as i64 up to 16."""
    padded = np.full((TILE, *array.shape[1:]), value, np.int64)
    padded[: len(array)] = array
    return padded


def in_tiles(x: Tensor) -> Iterator[Tensor]:
    """Yield pieces of [16, width] of [n, width], zeros at the end."""
    for start in range(0, len(x), TILE):
        piece = x[start : start + TILE]
        yield functional.pad(piece, (0, 0, 0, TILE - len(piece)))


def attend(kv: Tensor, tile: Tile, q: Tensor, form: AttentionForm) -> Tensor:
    """Attend with a tile's tokens to their contexts, their KV stored: q [16, H, D] → [16, H, D].

    `kv` is one layer's, [2, N, Hk, 64, D].
    """
    kv_heads, width, window = kv.shape[2], kv.shape[4], form.window
    grouped = q.float().reshape(TILE * kv_heads, -1, width) * form.scale  # [16 * Hk, G, D]
    slots = torch.arange(BLOCK_SIZE, device=q.device)
    if form.sinks is None:
        largest = grouped.new_full((*grouped.shape[:2], 1), -torch.inf)
        total = torch.zeros_like(largest)
    else:  # as if they had been seen first
        largest = form.sinks.float().reshape(kv_heads, -1, 1).repeat(TILE, 1, 1)
        total = torch.ones_like(largest)
    mixed = torch.zeros_like(grouped)
    for index in range(tile.tables.shape[1]):
        keys, values = (part[tile.tables[:, index]].float() for part in kv)  # [16, Hk, 64, D]
        at = index * BLOCK_SIZE + slots
        visible = at <= tile.positions[:, None]  # [16, 64]
        if window is not None:
            visible &= at > tile.positions[:, None] - window
        keys, values = (x.masked_fill(~visible[:, None, :, None], 0) for x in (keys, values))
        visible = visible.repeat_interleave(kv_heads, 0)[:, None]  # [16 * Hk, 1, 64]
        scores = torch.bmm(grouped, keys.reshape(-1, BLOCK_SIZE, width).transpose(1, 2))
        scores = capped(scores, form.cap).masked_fill(~visible, -torch.inf)
        seen = visible.any(-1, keepdim=True)
        new_largest = torch.maximum(largest, scores.amax(-1, keepdim=True))
        shares = exp_f32(scores - new_largest)
        keep = exp_f32(largest - new_largest)
        new_total = total * keep + shares.sum(-1, keepdim=True)
        new_mixed = mixed * keep + torch.bmm(shares, values.reshape(-1, BLOCK_SIZE, width))
        largest = torch.where(seen, new_largest, largest)
        total = torch.where(seen, new_total, total)
        mixed = torch.where(seen, new_mixed, mixed)
    return (mixed / total).to(q.dtype).reshape(q.shape)


def linear(x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
    """Multiply [16, in] by [out, in], then add [out]: [16, out]."""
    product = torch_ops.linear(x, weight, None)
    return product if bias is None else product + bias


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """Compute what goes into a down matrix of [16, 2 * width], gates first: [16, width]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    slope = gate
    if activation == "gelu_tanh":  # (1 + tanh(y)) / 2 is sigmoid(2 y)
        slope = 2 * GELU_SLOPE * (gate + GELU_CUBIC * (gate * gate * gate))
    elif activation == "clamped":
        gate, up = gate.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP) + 1
        slope = CLAMPED_SLOPE * gate
    return (gate / (1 + exp_f32(-slope)) * up).to(gate_up.dtype)


INVARIANT_OPS = Ops(linear, rms_norm, add_rms_norm, rotate, gated, fixes_shapes=True)


def check_products(weights: list[Tensor], *, kv_heads: int, group: int, head_dim: int) -> None:
    """Raise ConfigError unless a product's rows are the same bits at every place of a tile.

    `weights` has a matrix of each shape that the model multiplies by. Which kernel runs, and in
    which order it sums, depends on shapes and not on data, so equal rows that come out equal speak
    for all rows.
    """
    device = weights[0].device
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    for weight in weights:
        row = random(1, weight.shape[1]).to(device, weight.dtype)
        _refuse_unequal(linear(row.repeat(TILE, 1), weight, None), f"{tuple(weight.shape)}")
    query, keys = random(1, group, head_dim).to(device), random(1, BLOCK_SIZE, head_dim).to(device)
    pairs = TILE * kv_heads
    keys = keys.repeat(pairs, 1, 1)
    scores = torch.bmm(query.repeat(pairs, 1, 1), keys.transpose(1, 2))
    _refuse_unequal(scores, "q by k")
    _refuse_unequal(torch.bmm(scores, keys), "shares by v")


def _refuse_unequal(rows: Tensor, what: str) -> None:
    if not torch.equal(rows, rows[:1].expand_as(rows)):
        raise ConfigError(
            f"deterministic is not possible on {rows.device}: the product {what} gives a row other "
            f"bits at another place in a tile of {TILE}"
        )
