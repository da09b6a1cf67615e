"""How a weight matrix lies in memory for the matmul kernels: rows interleaved in groups.

A group is `rows` consecutive output rows (8 or 16, the lanes of one vector register):

    quantised    scales of all blocks, padded to 64 bytes, then quants of all blocks;
                 a block = 32 values of every row in the group
    F16, F32     value k of every row, for each k

    scales of a block   f16[rows] d, and for Q4_1 and Q5_1 f16[rows] m after it; MXFP4 u8[rows], as
                        in the file, because its powers of two are more than f16 has; UINT4
                        f16[rows] d, i8[rows] zero point
    super-blocks        ... of 8 blocks together: f16[rows] d, f16[rows] dmin (Q4_K, Q5_K), then of
                        each block two i8[rows]: scale and negative minimum; in Q6_K the scales of
                        values 0 to 15 and 16 to 31; in IQ4_XS i8[rows], one scale
    quants of a block   quads of 4 values: bytes (row, value in quad) of each quad in turn.
                        8 quads of signed bytes; or of 4 bits 4 quads, low nibbles quad j, high
                        nibbles quad j + 4. IQ4_NL, IQ4_XS and MXFP4 keep their 4 bits, which name
                        values of a table: that is what a decode reads. Q6_K: 4 such quads of the
                        lower 4 bits, then 2 of the upper 2, of quad j in bits 2 (j mod 4) of j / 4

Q5_0 has no format here: as Q8_0 it keeps its values, as 5 bits do in Q5_1 and Q5_K too.

Missing rows of the last group are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from skerry_core.weights.codebooks import CODEBOOKS
from skerry_core.weights.super_blocks import SUPER_BLOCK, SUPER_BLOCK_FORMATS, iq4_xs_codes
from skerry_core.weights.tensors import five_bits, row_bytes

BLOCK = 32  # values that share a scale
BLOCKS_PER_SUPER = SUPER_BLOCK // BLOCK
LAYOUT_VERSION = 3  # of packed bytes: a change makes files of packed weights stale


class WeightFormat(IntEnum):
    """Numbered as GGML numbers them."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    MXFP4 = 39
    UINT4 = 1000  # ours

    @property
    def is_quantized(self) -> bool:
        return self not in (WeightFormat.F32, WeightFormat.F16)

    @property
    def has_super_blocks(self) -> bool:
        return self.name in SUPER_BLOCK_FORMATS

    @property
    def codebook(self) -> tuple[int, ...] | None:
        """Return the values that its 4 bits name, if they do not mean themselves."""
        return CODEBOOKS.get(self.name)

    @property
    def has_nibbles(self) -> bool:
        plain = (WeightFormat.Q4_0, WeightFormat.Q4_1, WeightFormat.Q4_K, WeightFormat.UINT4)
        return self in plain or self.codebook is not None

    @property
    def blocks_per_scales(self) -> int:
        """Return the number of blocks whose scales lie together."""
        return BLOCKS_PER_SUPER if self.has_super_blocks else 1

    @property
    def row_scale_bytes(self) -> int:
        """Return the bytes of one row's scales of so many blocks."""
        return {
            WeightFormat.Q4_0: 2,
            WeightFormat.Q4_1: 4,
            WeightFormat.Q5_1: 4,
            WeightFormat.Q8_0: 2,
            WeightFormat.Q4_K: 4 + 2 * BLOCKS_PER_SUPER,
            WeightFormat.Q5_K: 4 + 2 * BLOCKS_PER_SUPER,
            WeightFormat.Q6_K: 2 + 2 * BLOCKS_PER_SUPER,
            WeightFormat.IQ4_NL: 2,
            WeightFormat.IQ4_XS: 2 + BLOCKS_PER_SUPER,
            WeightFormat.MXFP4: 1,
            WeightFormat.UINT4: 3,
        }.get(self, 0)

    @property
    def row_quant_bytes(self) -> int:
        """Return bytes of one block of one row, scales apart; of one value when not quantised."""
        if self is WeightFormat.Q6_K:
            return 3 * BLOCK // 4
        if self.is_quantized:
            return BLOCK // 2 if self.has_nibbles else BLOCK
        return 4 if self is WeightFormat.F32 else 2


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """The place of everything in one packed matrix [num_rows, num_columns]."""

    format: WeightFormat
    num_rows: int
    num_columns: int
    group_rows: int  # 8 or 16

    def __post_init__(self) -> None:
        unit = BLOCK * self.format.blocks_per_scales
        if self.format.is_quantized and self.num_columns % unit:
            raise ValueError(
                f"a {self.format.name} matrix needs a multiple of {unit} columns, "
                f"got {self.num_columns}"
            )

    @property
    def num_groups(self) -> int:
        return -(-self.num_rows // self.group_rows)

    @property
    def num_steps(self) -> int:
        """Count what a kernel's inner loop counts: blocks, or values when not quantised."""
        return self.num_columns // BLOCK if self.format.is_quantized else self.num_columns

    @property
    def scale_bytes(self) -> int:
        """Return the bytes of a group's scales, padding included."""
        units = self.num_steps // self.format.blocks_per_scales
        return -(-units * self.format.row_scale_bytes * self.group_rows // 64) * 64

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
    size = row_bytes(layout.format.name, layout.num_columns)
    if raw.shape != (layout.num_rows, size):
        raise ValueError(
            f"a {layout.format.name} matrix of {layout.num_rows} x {layout.num_columns} has rows "
            f"of {size} bytes, got an array of shape {raw.shape}"
        )
    rows, groups = layout.group_rows, layout.num_groups
    padded = np.zeros((groups * rows, size), np.uint8)
    padded[: layout.num_rows] = raw
    scales, quants = _split(padded, layout)
    packed = np.zeros((groups, layout.group_bytes), np.uint8)
    if scales is not None:
        # [groups, rows, units, scales, bytes] -> [groups, units, scales, rows, bytes]
        by_unit = [s.reshape(groups, rows, *s.shape[1:]).transpose(0, 2, 3, 1, 4) for s in scales]
        units = by_unit[0].shape[1]
        joined = np.concatenate([s.reshape(groups, units, -1) for s in by_unit], axis=2)
        packed[:, : joined[0].size] = joined.reshape(groups, -1)
    unit = 4 if layout.format.is_quantized else layout.format.row_quant_bytes  # stay together
    by_quad = quants.reshape(groups, rows, layout.num_steps, -1, unit).transpose(0, 2, 3, 1, 4)
    packed[:, layout.scale_bytes :] = by_quad.reshape(groups, -1)
    return packed


def _split(
    raw: NDArray[np.uint8], layout: PackedLayout
) -> tuple[list[NDArray[np.uint8]] | None, NDArray[np.uint8]]:
    """Return scales, each u8[rows, units, count, bytes], in their order, and quants u8[rows, …]."""
    format_, rows = layout.format, len(raw)
    if not format_.is_quantized:
        return None, raw
    if format_.has_super_blocks:
        return _split_super_blocks(raw, layout)
    blocks = raw.reshape(rows, layout.num_steps, -1)
    size = format_.row_scale_bytes
    scales, quants = blocks[..., :size], blocks[..., size:]
    if format_ is WeightFormat.UINT4:
        return [scales[..., None, :2], scales[..., None, 2:]], quants
    scales = scales.reshape(rows, layout.num_steps, -1, min(size, 2))
    if format_ is WeightFormat.Q5_1:
        quants = five_bits(quants[..., :4], quants[..., 4:])
    return [scales], quants


def _split_super_blocks(
    raw: NDArray[np.uint8], layout: PackedLayout
) -> tuple[list[NDArray[np.uint8]], NDArray[np.uint8]]:
    format_ = layout.format
    block_bytes, split = SUPER_BLOCK_FORMATS[format_.name]
    blocks = raw.reshape(-1, block_bytes)
    parts = split(blocks)
    units = (len(raw), layout.num_columns // SUPER_BLOCK)
    floats, integers = [parts.d], parts.scales
    if parts.dmin is not None and parts.minima is not None:
        floats.append(parts.dmin)
        integers = np.stack([parts.scales, -parts.minima], axis=2)
    halves = np.stack(floats, axis=1).astype(np.float16)
    scales = [
        halves.view(np.uint8).reshape(*units, len(floats), 2),
        np.ascontiguousarray(integers).view(np.uint8).reshape(*units, -1, 1),
    ]
    codes = iq4_xs_codes(blocks) if format_.codebook else parts.quants.view(np.uint8)
    quants = codes.reshape(len(raw), layout.num_steps, BLOCK)
    if format_ is WeightFormat.Q6_K:
        return scales, _six_bits(quants + np.uint8(32))
    if format_.has_nibbles:
        quants = _nibbles(quants)
    return scales, quants


def _nibbles(quants: NDArray[np.uint8]) -> NDArray[np.uint8]:
    joined: NDArray[np.uint8] = quants[..., : BLOCK // 2] | (
        quants[..., BLOCK // 2 :] << np.uint8(4)
    )
    return joined


def _six_bits(quants: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pack u8[..., 32] of 6 bits to u8[..., 24]."""
    lead = quants.shape[:-1]
    high = (quants >> np.uint8(4)).reshape(*lead, 2, 4, 4)  # quads of four in each byte
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    upper: NDArray[np.uint8] = np.bitwise_or.reduce(high << shifts, axis=-2)
    return np.concatenate([_nibbles(quants & np.uint8(15)), upper.reshape(*lead, -1)], axis=-1)
