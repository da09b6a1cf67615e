"""GGML's K formats and IQ4_XS taken apart: super-blocks of 256 values whose scales are integers
themselves.

ggml-common.h. A value of sub-block s is `d * scales[s] * quant - dmin * minima[s]`, where d and
dmin are f16 and belong to the super-block; Q6_K and IQ4_XS have no minima.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skerry_core.weights.codebooks import looked_up

Bytes = NDArray[np.uint8]
Int8 = NDArray[np.int8]
Float32 = NDArray[np.float32]

SUPER_BLOCK = 256  # values


class SuperBlocks(NamedTuple):
    """n super-blocks; S is 8 sub-blocks of 32 values, or 16 of 16 (Q6_K)."""

    d: Float32  # f32[n], exactly the f16
    scales: Int8  # i8[n, S]
    quants: Int8  # i8[n, 256]; IQ4_XS: what its codes stand for
    dmin: Float32 | None = None  # f32[n]
    minima: Int8 | None = None  # i8[n, S]

    def values(self) -> Float32:
        """Compute f32[n, 256]. The products of d and an integer scale are exact."""
        n, parts = self.scales.shape
        values = self.quants.reshape(n, parts, -1).astype(np.float32)
        values *= (self.d[:, None] * self.scales)[:, :, None]
        if self.dmin is not None and self.minima is not None:
            values -= (self.dmin[:, None] * self.minima)[:, :, None]
        return values.reshape(n, SUPER_BLOCK)


def _split_q4_k(blocks: Bytes) -> SuperBlocks:
    """Split u8[n, 144]."""
    return _with_minima(blocks, _nibble_pairs(blocks[:, 16:]))


def _split_q5_k(blocks: Bytes) -> SuperBlocks:
    """Split u8[n, 176]."""
    fifth = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    return _with_minima(blocks, _nibble_pairs(blocks[:, 48:]) | (fifth << np.uint8(4)))


def _split_q6_k(blocks: Bytes) -> SuperBlocks:
    """Split u8[n, 210]."""
    packed = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([packed & 0xF, packed >> 4], axis=2).reshape(-1, 8, 32)
    packed = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high = (packed >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    quants = (low | (high.reshape(-1, 8, 32) << 4)).view(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return SuperBlocks(_f16(blocks[:, 208:]), scales, quants.reshape(-1, SUPER_BLOCK))


def _split_iq4_xs(blocks: Bytes) -> SuperBlocks:
    """Split u8[n, 136]."""
    low = blocks[:, 4:8, None] >> np.array([0, 4], np.uint8) & np.uint8(0xF)
    high = blocks[:, 2:4, None] >> np.array([0, 2, 4, 6], np.uint8) & np.uint8(3)
    scales = low.reshape(-1, 8) | (high.reshape(-1, 8) << np.uint8(4))
    return SuperBlocks(
        d=_f16(blocks[:, :2]),
        scales=scales.view(np.int8) - np.int8(32),
        quants=looked_up(iq4_xs_codes(blocks), "IQ4_XS"),
    )


def iq4_xs_codes(blocks: Bytes) -> Bytes:
    """Return the codes u8[n, 256] of u8[n, 136]."""
    pairs = blocks[:, 8:].reshape(-1, 8, 1, 16)
    nibbles = [pairs & np.uint8(0xF), pairs >> np.uint8(4)]
    return np.concatenate(nibbles, axis=2).reshape(-1, SUPER_BLOCK)


def _with_minima(blocks: Bytes, quants: Bytes) -> SuperBlocks:
    """Split Q4_K or Q5_K: d, dmin, and 8 scales and minima of 6 bits each in 12 bytes."""
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = [low & 0x3F, (high & 0xF) | ((low >> 6) << 4)]
    minima = [middle & 0x3F, (high >> 4) | ((middle >> 6) << 4)]
    return SuperBlocks(
        d=_f16(blocks[:, :2]),
        scales=np.concatenate(scales, axis=1).view(np.int8),
        quants=quants.reshape(-1, SUPER_BLOCK).view(np.int8),
        dmin=_f16(blocks[:, 2:4]),
        minima=np.concatenate(minima, axis=1).view(np.int8),
    )


def _nibble_pairs(packed: Bytes) -> Bytes:
    """Split u8[n, 128] to u8[n, 8, 32]: sub-block 2 j in low nibbles, 2 j + 1 in high ones."""
    pairs = packed.reshape(-1, 4, 32)
    return np.stack([pairs & np.uint8(0xF), pairs >> np.uint8(4)], axis=2).reshape(-1, 8, 32)


def _f16(data: Bytes) -> Float32:
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32).reshape(-1)


class SuperBlockFormat(NamedTuple):
    block_bytes: int  # of a super-block
    split: Callable[[Bytes], SuperBlocks]  # u8[n, block_bytes]


SUPER_BLOCK_FORMATS = {
    "Q4_K": SuperBlockFormat(144, _split_q4_k),
    "Q5_K": SuperBlockFormat(176, _split_q5_k),
    "Q6_K": SuperBlockFormat(210, _split_q6_k),
    "IQ4_XS": SuperBlockFormat(136, _split_iq4_xs),
}
