"""Products of floats with the same bits in any batch.

The inner dimension is cut into chunks of 1,024, each summed in one accumulator of tensor cores, and
chunks are added in their order: by one program where there are rows enough for all of a device, by
a program each and a merge where there are few, which wait for weights. Weights are the left side,
so tensor cores run one kind of instruction whatever the rows of a tile are.
"""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 1024
_MERGED = 1024  # elements of a program that merges
_NEIGHBOURS: tl.constexpr = tl.constexpr(8)  # tiles of rows that share weights in the cache


class TileShape(NamedTuple):
    """What a program multiplies, and how."""

    rows: int
    outputs: int
    warps: int
    stages: int


_FEW, _SOME, _MANY = TileShape(16, 64, 4, 5), TileShape(64, 64, 4, 4), TileShape(128, 128, 8, 3)


def tile_of(rows: int, dtype: torch.dtype) -> TileShape:
    """Return the tile for so many rows; float32 has no room for large ones."""
    if rows <= _FEW.rows:
        return _FEW
    return _SOME if rows <= _SOME.rows or dtype is torch.float32 else _MANY


def invariant_product(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply [T, in] by [out, in]: [T, out]."""
    (num_outputs, inner), count = weight.shape, len(x)
    tile, chunks = tile_of(count, x.dtype), triton.cdiv(inner, CHUNK)
    is_split = tile is not _MANY and chunks > 1
    out = x.new_empty((count, num_outputs))
    parts = out
    if is_split:
        parts = x.new_empty((chunks, count, num_outputs), dtype=torch.float32)
    tiles = triton.cdiv(num_outputs, tile.outputs) * triton.cdiv(count, tile.rows)
    _product[(tiles, chunks if is_split else 1)](
        x, weight, parts, count, num_outputs, inner, IS_SPLIT=is_split, CHUNK=CHUNK,
        ROWS=tile.rows, OUTPUTS=tile.outputs, INNER=64,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if is_split:
        _merge_chunks[(triton.cdiv(out.numel(), _MERGED),)](
            parts, out, out.numel(), chunks, SIZE=_MERGED
        )
    return out


@triton.jit(do_not_specialize=["rows"])
def _product(
    x, weight, out, rows, outputs, inner, IS_SPLIT: tl.constexpr, CHUNK: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Multiply [OUTPUTS, ROWS], of all chunks or of one."""
    tiles, number = tl.cdiv(rows, ROWS), tl.program_id(0)
    near = _NEIGHBOURS * tl.cdiv(outputs, OUTPUTS)
    first = number // near * _NEIGHBOURS
    size = tl.minimum(tiles - first, _NEIGHBOURS)
    r = (first + number % near % size) * ROWS + tl.arange(0, ROWS)
    n = number % near // size * OUTPUTS + tl.arange(0, OUTPUTS)
    i = tl.arange(0, INNER)
    # What is beyond rows and outputs is read as the last, and not written.
    row, output = tl.minimum(r, rows - 1).to(tl.int64), tl.minimum(n, outputs - 1).to(tl.int64)
    values, weights = x + row[None] * inner + i[:, None], weight + output[:, None] * inner + i[None]
    begin, end = 0, inner
    if IS_SPLIT:
        begin = tl.program_id(1) * CHUNK
        end = tl.minimum(begin + CHUNK, inner)
        out += tl.program_id(1).to(tl.int64) * rows * outputs
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for chunk in range(begin, end, CHUNK):
        part = tl.zeros([OUTPUTS, ROWS], tl.float32)
        for k in range(chunk, tl.minimum(chunk + CHUNK, inner), INNER):
            is_inner = k + i < inner
            wide = tl.load(weights + k, mask=is_inner[None], other=0.0)
            value = tl.load(values + k, mask=is_inner[:, None], other=0.0)
            part = tl.dot(wide, value, part, input_precision="ieee")
        total += part
    at = r[None].to(tl.int64) * outputs + n[:, None]
    is_own = (r < rows)[None] & (n < outputs)[:, None]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=is_own)


@triton.jit(do_not_specialize=["size"])
def _merge_chunks(parts, out, size, chunks, SIZE: tl.constexpr):
    """Add chunks in their order."""
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    total = tl.zeros([SIZE], tl.float32)
    for _ in range(chunks):
        total += tl.load(parts + i, mask=i < size, other=0.0)
        parts += size
    tl.store(out + i, total.to(out.dtype.element_ty), mask=i < size)
