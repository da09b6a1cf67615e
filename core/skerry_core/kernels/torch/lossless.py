"""BF12 on a device: bf16 matrices in 12 bits a weight, as `weights.bf12` has them, laid out for a
product's tiles.

Eight neighbours are a word of 8 bytes (signs and mantissas) and one of 4 (codes). Bytes lie so that
a mask takes weights j and j + 4 out of a word at once, each in its half, and two weights are made
in one register. Pairs with an exponent outside of the window are listed by tile and j, as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from skerry_core.weights.bf12 import WINDOW

TILE_OUTPUTS: Final = 16
TILE_WORDS: Final = 32
_BYTES = (0, 1, 4, 5, 2, 3, 6, 7)  # which of eight weights lies where in a word


@dataclass(frozen=True, slots=True)
class BF12Planes:
    """[rows, columns] of bf16, columns a multiple of 8."""

    signs: Tensor  # i64[rows, columns / 8]
    codes: Tensor  # i32[rows, columns / 8]; weight i in bits 4 i to 4 i + 3
    firsts: Tensor  # u8[rows]: first exponents of the windows
    starts: Tensor  # i32[4 tiles + 1]: where the pairs of each tile and j begin; tiles along rows
    places: Tensor  # i32[n]: row in the tile, times TILE_WORDS, and word in it
    pairs: Tensor  # i32[n]: weight j in the low half, j + 4 in the high one

    @property
    def shape(self) -> tuple[int, int]:
        rows, words = self.signs.shape
        return rows, words * 8

    @property
    def device(self) -> torch.device:
        return self.signs.device

    @property
    def num_bytes(self) -> int:
        planes = (self.signs, self.codes, self.firsts, self.starts, self.places, self.pairs)
        return sum(plane.nbytes for plane in planes)

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """Return the weights themselves, [rows, columns]."""
        rows, words = self.signs.shape
        exponents = self.codes[..., None] >> _shifts(self.device) & 15
        exponents += self.firsts[:, None, None].int()
        signs = self.signs[..., None].view(torch.uint8)[..., _BYTES].int()
        bits = (signs & 0x80) << 8 | exponents << 7 | signs & 0x7F
        across = -(-words // TILE_WORDS)
        numbers = torch.arange(len(self.starts) - 1, device=self.device)
        tile, j = (numbers // 4, numbers % 4)
        counts = self.starts.diff()
        row = (tile // across * TILE_OUTPUTS).repeat_interleave(counts) + self.places // TILE_WORDS
        word = (tile % across * TILE_WORDS).repeat_interleave(counts) + self.places % TILE_WORDS
        j = j.repeat_interleave(counts)
        bits[row, word, j], bits[row, word, j + 4] = self.pairs & 0xFFFF, self.pairs >> 16
        return bits.view(rows, words * 8).to(torch.int16).view(torch.bfloat16).to(dtype)


def encoded(weight: Tensor) -> BF12Planes:
    """Encode bf16 [rows, columns], columns a multiple of 8, on its device."""
    rows, columns = weight.shape
    bits = weight.contiguous().view(torch.int16).int()
    exponents = bits >> 7 & 0xFF
    counts = torch.zeros(rows, 257, dtype=torch.int32, device=weight.device)
    counts.scatter_add_(1, exponents.long() + 1, torch.ones_like(exponents))
    up_to = counts.cumsum(1)
    firsts = (up_to[:, WINDOW:] - up_to[:, :-WINDOW]).argmax(1).to(torch.uint8)
    codes = (exponents - firsts[:, None].int()).view(rows, -1, 8)
    is_escaped = (codes < 0) | (codes >= WINDOW)
    row, word, j = (is_escaped[..., :4] | is_escaped[..., 4:]).nonzero(as_tuple=True)
    across = -(-columns // (8 * TILE_WORDS))
    number = (row // TILE_OUTPUTS * across + word // TILE_WORDS) * 4 + j
    order = number.argsort(stable=True)
    num_starts = -(-rows // TILE_OUTPUTS) * across * 4
    starts = torch.zeros(num_starts + 1, dtype=torch.int32, device=weight.device)
    starts[1:] = torch.bincount(number, minlength=num_starts).cumsum(0)
    by_word = bits.view(rows, -1, 8)
    pairs = by_word[row, word, j] & 0xFFFF | by_word[row, word, j + 4] << 16
    places = row % TILE_OUTPUTS * TILE_WORDS + word % TILE_WORDS
    signs = (bits >> 8 & 0x80 | bits & 0x7F).to(torch.uint8).view(rows, -1, 8)
    held = codes.masked_fill(is_escaped, 0) << _shifts(weight.device)
    return BF12Planes(
        signs[..., _BYTES].contiguous().view(torch.int64)[..., 0],
        held.sum(-1, dtype=torch.int32),
        firsts,
        starts,
        places[order].int(),
        pairs[order],
    )


def _shifts(device: torch.device) -> Tensor:
    return torch.arange(0, 32, 4, device=device, dtype=torch.int32)
