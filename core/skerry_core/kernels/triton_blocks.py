"""KV blocks out of a pool and back in canonical form, any number of them in one Triton kernel.

The pool is `[layer, k|v, N, kv_head, 64, D]`, a block in canonical form
`[layer, k|v, kv_head, 64, D]`: each is 2 * layers runs of memory. KV in 8 bits is told in the
dtype of the canonical side.
"""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from skerry_core.kernels.quantized import LARGEST
from skerry_core.kernels.triton_math import in_8_bits

_CHUNK = 2048  # elements of a program


def gather(kv: Tensor, blocks: Tensor, out: Tensor, scales: Tensor | None = None) -> None:
    """Copy blocks i32[n] of the pool to `out` [n, layer, k|v, kv_head, 64, D].

    `scales` f32[layer, k|v, N, kv_head, 64] are those of a pool in 8 bits.
    """
    _launch(kv, blocks, out, scales, is_gather=True)


def scatter(kv: Tensor, blocks: Tensor, data: Tensor, scales: Tensor | None = None) -> None:
    """Overwrite blocks i32[n] of the pool with `data`, the inverse of `gather`."""
    _launch(kv, blocks, data, scales, is_gather=False)


def _launch(
    kv: Tensor, blocks: Tensor, data: Tensor, scales: Tensor | None, *, is_gather: bool
) -> None:
    layers, _, num_blocks, heads, slots, width = kv.shape
    rows = max(_CHUNK // triton.next_power_of_2(width), 1)  # of one slot and head each
    _copy[(len(blocks) * layers * 2, triton.cdiv(heads * slots, rows))](
        kv, kv if scales is None else scales, blocks, data, num_blocks, layers * 2,
        HEAD_SLOTS=heads * slots, WIDTH=width, PADDED=triton.next_power_of_2(width), ROWS=rows,
        MOST=LARGEST.get(kv.dtype, 0), IS_GATHER=is_gather,
    )  # fmt: skip


@triton.jit
def _copy(
    kv, scales, blocks, data, num_blocks, parts,
    HEAD_SLOTS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
    MOST: tl.constexpr, IS_GATHER: tl.constexpr,
):  # fmt: skip
    """Some slots of one block of one layer's keys or values."""
    index, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    block = tl.load(blocks + index).to(tl.int64)
    row, d = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, PADDED)
    is_row = row < HEAD_SLOTS
    is_own = is_row[:, None] & (d < WIDTH)[None]
    pooled = (part.to(tl.int64) * num_blocks + block) * HEAD_SLOTS + row
    told = tl.program_id(0).to(tl.int64) * HEAD_SLOTS + row
    in_pool = kv + pooled[:, None] * WIDTH + d[None]
    outside = data + told[:, None] * WIDTH + d[None]
    if IS_GATHER:
        values = tl.load(in_pool, mask=is_own, other=0.0)
        if MOST:
            scale = tl.load(scales + pooled, mask=is_row, other=0.0)[:, None]
            values = (values.to(tl.float32) * scale).to(data.dtype.element_ty)
        tl.store(outside, values, mask=is_own)
    else:
        values = tl.load(outside, mask=is_own, other=0.0)
        if MOST:
            wide = values.to(tl.float32)
            scale = tl.maximum(tl.max(tl.abs(wide), axis=1), 1e-12) / MOST
            tl.store(scales + pooled, scale, mask=is_row)
            values = in_8_bits(wide / scale[:, None], MOST).to(kv.dtype.element_ty)
        tl.store(in_pool, values, mask=is_own)
