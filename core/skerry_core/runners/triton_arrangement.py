"""A step as Triton's kernels want it, on the host: tiles of tokens, and padding to few shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import ForwardBatch, Int32
from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.triton.attention import (
    SPLIT_BLOCKS,
    SPLIT_TILE,
    WHOLE_TILE,
    tile_tokens,
)

_ROW_STEP = 32  # rows: buckets above it are its multiples
_LEAST_SPLITS = 4  # of a context: 1,024 tokens


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A step as the kernels want it, still on the host."""

    token_ids: Int32  # i32[T]
    positions: Int32  # i32[T]
    slots: Int32  # i32[T]          where each token's KV goes: block * 64 + slot
    samples: Int32  # i32[S]
    tables: Int32  # i32[R, M]      unused entries are 0
    split_tiles: tuple[Int32, Int32, Int32]  # rows, starts and lengths of `Tiles`
    whole_tiles: tuple[Int32, Int32, Int32]
    num_splits: int  # of the longest context among the split tiles

    @property
    def arrays(self) -> list[NDArray[Any]]:
        return [
            self.token_ids, self.positions, self.slots, self.samples, self.tables,
            *self.split_tiles, *self.whole_tiles,
        ]  # fmt: skip


def arrange(batch: ForwardBatch, group: int, *, is_invariant: bool) -> Arrangement:
    """Arrange a step: rows of one token attend in pieces, longer ones in one, unless invariant."""
    starts, counts = batch.query_start[:-1], np.diff(batch.query_start)
    owners = np.repeat(np.arange(batch.num_rows), counts)
    blocks = batch.block_tables[owners, batch.positions // BLOCK_SIZE]
    is_split = np.full(batch.num_rows, True) if is_invariant else counts == 1
    last = batch.positions[batch.query_start[1:] - 1][is_split]
    return Arrangement(
        token_ids=batch.token_ids,
        positions=batch.positions,
        slots=(blocks * BLOCK_SIZE + batch.positions % BLOCK_SIZE).astype(np.int32),
        samples=batch.sample_tokens,
        tables=np.maximum(batch.block_tables, 0),
        split_tiles=tiles(starts, counts, is_split, tile_tokens(SPLIT_TILE, group)),
        whole_tiles=tiles(starts, counts, ~is_split, tile_tokens(WHOLE_TILE, group)),
        num_splits=int(last.max(initial=0)) // (BLOCK_SIZE * SPLIT_BLOCKS) + 1,
    )


def tiles(
    starts: Int32, counts: Int32, is_wanted: NDArray[np.bool_], most: int
) -> tuple[Int32, Int32, Int32]:
    """Cut rows into tiles of at most `most` tokens, the longest contexts' tiles first."""
    rows = np.flatnonzero(is_wanted)
    per_row = -(-counts[rows] // most)
    tile_rows = np.repeat(rows, per_row)
    first = np.repeat(np.cumsum(per_row) - per_row, per_row)
    offsets = (np.arange(len(tile_rows)) - first) * most
    lengths = np.minimum(counts[tile_rows] - offsets, most)
    tiles = tile_rows, starts[tile_rows] + offsets, lengths
    # A late tile sees more than an early one; begun last, it would finish alone.
    rows_first, starts_first, lengths_first = (tile[::-1].astype(np.int32) for tile in tiles)
    return rows_first, starts_first, lengths_first


def pad(step: Arrangement, rows: int, splits: int, scratch: int) -> Arrangement:
    """Pad a decoding step to `rows` rows and samples, and contexts of `splits` pieces.

    Padding is rows of one token, whose KV is written to block `scratch` and read back.
    """
    used = len(step.token_ids)
    padding = np.arange(used, rows, dtype=np.int32)

    def filled(array: Int32, value: int) -> Int32:
        return np.concatenate([array, np.full(rows - len(array), value, np.int32)])

    tables = np.zeros((rows, splits * SPLIT_BLOCKS), np.int32)
    width = min(step.tables.shape[1], tables.shape[1])
    tables[:used, :width] = step.tables[:, :width]
    tables[used:] = scratch
    tile_rows, starts, lengths = step.split_tiles
    return Arrangement(
        token_ids=filled(step.token_ids, 0),
        positions=filled(step.positions, 0),
        slots=filled(step.slots, scratch * BLOCK_SIZE),
        samples=filled(step.samples, 0),
        tables=tables,
        split_tiles=(
            np.concatenate([tile_rows, padding]),
            np.concatenate([starts, padding]),
            filled(lengths, 1),
        ),
        whole_tiles=step.whole_tiles,
        num_splits=splits,
    )


def row_buckets(largest: int) -> list[int]:
    """Return 1, 2, 4 … 32, then multiples of 32, up to what holds `largest` rows."""
    small = [1 << i for i in range(6)]
    above = range(2 * _ROW_STEP, largest + _ROW_STEP, _ROW_STEP)
    return [n for n in small if n < 2 * largest] + list(above)


def split_buckets(max_context: int) -> list[int]:
    """Return 4, 16, 64 … pieces, up to what holds the longest context."""
    largest = -(-max_context // (BLOCK_SIZE * SPLIT_BLOCKS))
    buckets = [_LEAST_SPLITS]
    while buckets[-1] < largest:
        buckets.append(buckets[-1] * 4)
    return buckets
