"""How a weight matrix lies in memory for the matmul kernels: rows interleaved in groups.

A group is `rows` consecutive output rows (8 or 16, the lanes of one vector register):

    Q4_0, Q4_1   scales of all blocks, padded to 64 bytes, then quants of all blocks
    Q8_0         a block = 32 values of every row in the group
    F16, F32     value k of every row, for each k

    scales of a block   f16[rows] d, and for Q4_1 f16[rows] m after it
    quants of a block   quads of 4 values: bytes (row, value in quad) of each quad in turn.
                        Q8_0 has 8 quads; Q4 has 4, low nibbles quad j, high nibbles quad j + 4

Missing rows of the last group are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

BLOCK = 32  # values that share a scale
LAYOUT_VERSION = 1  # of packed bytes: a change makes files of packed weights stale


class WeightFormat(IntEnum):
    """Numbered as GGML numbers them."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q8_0 = 8

    @property
    def is_quantized(self) -> bool:
        return self not in (WeightFormat.F32, WeightFormat.F16)

    @property
    def scales_per_block(self) -> int:
        return {WeightFormat.Q4_0: 1, WeightFormat.Q4_1: 2, WeightFormat.Q8_0: 1}.get(self, 0)

    @property
    def row_quant_bytes(self) -> int:
        """Bytes of one block of one row, scales apart; of one value when not quantised."""
        return {
            WeightFormat.F32: 4,
            WeightFormat.F16: 2,
            WeightFormat.Q4_0: 16,
            WeightFormat.Q4_1: 16,
            WeightFormat.Q8_0: 32,
        }[self]


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """The place of everything in one packed matrix [num_rows, num_columns]."""

    format: WeightFormat
    num_rows: int
    num_columns: int
    group_rows: int  # 8 or 16

    def __post_init__(self) -> None:
        if self.format.is_quantized and self.num_columns % BLOCK:
            raise ValueError(
                f"a {self.format.name} matrix needs a multiple of {BLOCK} columns, "
                f"got {self.num_columns}"
            )

    @property
    def num_groups(self) -> int:
        return -(-self.num_rows // self.group_rows)

    @property
    def num_steps(self) -> int:
        """What a kernel's inner loop counts: blocks, or values when not quantised."""
        return self.num_columns // BLOCK if self.format.is_quantized else self.num_columns

    @property
    def scale_bytes(self) -> int:
        """Scales of a group, padding included."""
        return -(-self.num_steps * self.format.scales_per_block * 2 * self.group_rows // 64) * 64

    @property
    def group_bytes(self) -> int:
        return self.scale_bytes + self.num_steps * self.format.row_quant_bytes * self.group_rows

    @property
    def num_bytes(self) -> int:
        return self.num_groups * self.group_bytes


def pack(raw: NDArray[np.uint8], layout: PackedLayout) -> NDArray[np.uint8]:
    """Interleave a matrix `u8[num_rows, row bytes]` of GGML blocks; gives u8[groups, group bytes].

    Raises ValueError when the bytes do not fit the layout.
    """
    format_, rows, steps = layout.format, layout.group_rows, layout.num_steps
    scales = format_.scales_per_block
    step_bytes = 2 * scales + format_.row_quant_bytes
    if raw.shape != (layout.num_rows, steps * step_bytes):
        raise ValueError(
            f"a {format_.name} matrix of {layout.num_rows} x {layout.num_columns} has rows of "
            f"{steps * step_bytes} bytes, got an array of shape {raw.shape}"
        )
    padded = np.zeros((layout.num_groups * rows, steps, step_bytes), np.uint8)
    padded[: layout.num_rows] = raw.reshape(layout.num_rows, steps, step_bytes)
    grouped = padded.reshape(layout.num_groups, rows, steps, step_bytes)
    packed = np.zeros((layout.num_groups, layout.group_bytes), np.uint8)
    if scales:
        by_block = grouped[..., : 2 * scales].reshape(layout.num_groups, rows, steps, scales, 2)
        used = steps * scales * 2 * rows
        packed[:, :used] = by_block.transpose(0, 2, 3, 1, 4).reshape(layout.num_groups, used)
    unit = 4 if format_.is_quantized else format_.row_quant_bytes  # bytes that stay together
    quants = grouped[..., 2 * scales :].reshape(layout.num_groups, rows, steps, -1, unit)
    packed[:, layout.scale_bytes :] = quants.transpose(0, 2, 3, 1, 4).reshape(
        layout.num_groups, layout.group_bytes - layout.scale_bytes
    )
    return packed
