"""BF12: bf16 weights in 12 bits and a little, without loss.

The exponents of trained weights lie close together: 2.6 of their 8 bits are information (DFloat11,
Zhang et al., 2025). So each row has a window of 15 neighbouring exponents, and 4 bits say which of
them a weight has, beside the byte of its sign and mantissa. Unlike Huffman's, such a code has one
length, so that a weight is found and widened by itself. 16 neighbours with an exponent outside of
the window keep all of theirs as bytes; about one group in 500 does, and a matrix takes 0.752 of its
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from skerry_core.weights.tensors import Bytes

BF12_GROUP: Final = 16  # weights
WINDOW: Final = 15  # exponents
ESCAPED: Final = 15  # the code of weights whose group keeps its exponents
_AT_ONCE = 1 << 22  # weights that are encoded
_SIGN, _MANTISSA = np.uint8(0x80), np.uint8(0x7F)
_BYTE, _MANTISSA_BITS = np.uint16(8), np.uint16(7)

BFloat16s = NDArray[np.uint16]  # the bits


@dataclass(frozen=True, slots=True)
class BF12Matrix:
    """A matrix [rows, columns], its columns whole groups."""

    signs: Bytes  # u8[rows, columns]: the sign, then 7 bits of mantissa
    codes: Bytes  # u8[rows, columns / 2]: exponent less its row's first; even columns in low halves
    firsts: Bytes  # u8[rows]: first exponents of the windows
    escapes: NDArray[np.int32]  # i32[n], ascending: groups, counted along rows
    exponents: Bytes  # u8[n, 16], of those groups

    def __post_init__(self) -> None:
        """Raise ValueError for parts that do not fit each other."""
        rows, columns = self.signs.shape
        if columns % BF12_GROUP or self.codes.shape != (rows, columns // 2):
            raise ValueError(f"codes {self.codes.shape} of signs {self.signs.shape}")
        if self.firsts.shape != (rows,) or (self.firsts > 256 - WINDOW).any():
            raise ValueError("first exponents that are not those of windows")
        if self.exponents.shape != (len(self.escapes), BF12_GROUP):
            raise ValueError(f"exponents {self.exponents.shape} of {len(self.escapes)} groups")
        check_escapes(self.escapes, self.signs.shape)

    @property
    def num_bytes(self) -> int:
        planes = (self.signs, self.codes, self.firsts, self.escapes, self.exponents)
        return sum(plane.nbytes for plane in planes)

    def decoded(self) -> BFloat16s:
        """Return the weights' bits, u16[rows, columns].

        Raises ValueError where codes say of other groups that they are escaped.
        """
        rows, columns = self.signs.shape
        codes = np.empty((rows, columns), np.uint8)
        np.bitwise_and(self.codes, 15, out=codes[:, ::2])
        np.right_shift(self.codes, 4, out=codes[:, 1::2])
        in_groups = codes.reshape(-1, BF12_GROUP)
        if not np.array_equal(np.flatnonzero((in_groups == ESCAPED).any(1)), self.escapes):
            raise ValueError("codes escape other groups than are listed")
        codes += self.firsts[:, None]
        in_groups[self.escapes] = self.exponents
        bits = (self.signs & _SIGN).astype(np.uint16) << _BYTE
        bits |= codes.astype(np.uint16) << _MANTISSA_BITS
        bits |= self.signs & _MANTISSA
        return bits


def check_escapes(escapes: NDArray[np.int32], shape: tuple[int, ...]) -> None:
    """Raise ValueError unless numbers of groups ascend and lie in a matrix [rows, columns]."""
    groups = shape[0] * shape[1] // BF12_GROUP
    ascends = (np.diff(escapes) > 0).all()
    if len(escapes) and not (ascends and 0 <= escapes[0] <= escapes[-1] < groups):
        raise ValueError("escaped groups that do not ascend, or lie outside of the matrix")


def encode(weights: BFloat16s) -> BF12Matrix:
    """Encode bits u16[rows, columns], their columns whole groups of 16."""
    rows, columns = weights.shape
    signs, codes = np.empty((rows, columns), np.uint8), np.empty((rows, columns // 2), np.uint8)
    firsts = np.empty(rows, np.uint8)
    escapes, exponents = [np.empty(0, np.int32)], [np.empty((0, BF12_GROUP), np.uint8)]
    step = max(1, _AT_ONCE // columns)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        some = weights[part]
        signs[part] = some >> 8 & 0x80 | some & 0x7F
        own = (some >> 7 & 0xFF).astype(np.uint8)
        firsts[part] = _windows(own)
        code = own - firsts[part, None]  # below the window it wraps around, beyond it
        is_escaped = (code >= WINDOW).reshape(-1, BF12_GROUP).any(1)
        code.reshape(-1, BF12_GROUP)[is_escaped] = ESCAPED
        codes[part] = code[:, ::2] | code[:, 1::2] << 4
        found = np.flatnonzero(is_escaped)
        escapes.append((found + start * columns // BF12_GROUP).astype(np.int32))
        exponents.append(own.reshape(-1, BF12_GROUP)[found])
    return BF12Matrix(signs, codes, firsts, np.concatenate(escapes), np.concatenate(exponents))


def _windows(exponents: Bytes) -> Bytes:
    """Return for each row of u8[rows, columns] where the fullest window begins, u8[rows]."""
    rows = len(exponents)
    bins = exponents + np.arange(rows, dtype=np.int64)[:, None] * 256
    counts = np.bincount(bins.reshape(-1), minlength=rows * 256).reshape(rows, 256)
    up_to = np.pad(counts.cumsum(1), ((0, 0), (1, 0)))
    firsts: Bytes = (up_to[:, WINDOW:] - up_to[:, :-WINDOW]).argmax(1).astype(np.uint8)
    return firsts
