"""A step as Triton's kernels want it, on the host: tiles of tokens, and padding to few shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import ForwardBatch, Int32
from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.torch.torch_sampling import adjusts, styles
from skerry_core.kernels.triton.attention import WHOLE_TILE, tile_tokens
from skerry_core.kernels.triton.split_attention import SPLIT_BLOCKS, SPLIT_TILE
from skerry_core.runners.device_sizes import USUAL_PIECES


@dataclass(frozen=True, slots=True)
class PieceArrays:
    """`ContextPieces` on the host."""

    tiles: Int32  # i32[n]
    indices: Int32  # i32[n]
    blocks: Int32  # i32[n, SPLIT_BLOCKS]
    parts: Int32  # i32[tiles]
    count: Int32  # i32[1]
    num_parts: int

    @property
    def arrays(self) -> list[Int32]:
        return [self.tiles, self.indices, self.blocks, self.parts, self.count]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A step as the kernels want it, still on the host."""

    token_ids: Int32  # i32[T]
    positions: Int32  # i32[T]
    slots: Int32  # i32[T]          where each token's KV goes: block * 64 + slot
    samples: Int32  # i32[S]
    sources: Int32  # i32[T]  the sample of the step before that makes the token; -1: none does
    styles: list[NDArray[Any]]  # of `torch_sampling.styles`, each [S]
    tables: Int32  # i32[R, M]      unused entries are 0
    split_tiles: tuple[Int32, Int32, Int32]  # rows, starts and lengths of `Tiles`
    whole_tiles: tuple[Int32, Int32, Int32]
    pieces: PieceArrays  # of the split tiles

    @property
    def arrays(self) -> list[NDArray[Any]]:
        return [
            self.token_ids, self.positions, self.slots, self.samples, self.sources, self.tables,
            *self.split_tiles, *self.whole_tiles, *self.pieces.arrays, *self.styles,
        ]  # fmt: skip


def arrange(batch: ForwardBatch, group: int, *, is_invariant: bool) -> Arrangement:
    """Arrange a step: rows of one token attend in pieces, longer ones in one, unless invariant.

    Where something adjusts logits first, tokens are chosen in the cheapest way, and then again.
    """
    starts, counts = batch.query_start[:-1], np.diff(batch.query_start)
    owners = np.repeat(np.arange(batch.num_rows), counts)
    blocks = batch.block_tables[owners, batch.positions // BLOCK_SIZE]
    is_split = np.full(batch.num_rows, True) if is_invariant else counts == 1
    tables = np.maximum(batch.block_tables, 0)
    split_tiles = tiles(starts, counts, is_split, tile_tokens(SPLIT_TILE, group))
    sources = np.full(batch.num_tokens, -1, np.int32)
    if batch.feeds is not None:
        sources[batch.feeds[:, 0]] = batch.feeds[:, 1]
    samples = batch.sampling.samples
    return Arrangement(
        token_ids=batch.token_ids,
        positions=batch.positions,
        slots=(blocks * BLOCK_SIZE + batch.positions % BLOCK_SIZE).astype(np.int32),
        samples=batch.sample_tokens,
        sources=sources,
        styles=styles(np.zeros_like(samples) if adjusts(batch.sampling) else samples),
        tables=tables,
        split_tiles=split_tiles,
        whole_tiles=tiles(starts, counts, ~is_split, tile_tokens(WHOLE_TILE, group)),
        pieces=pieces_of(split_tiles, batch.positions, tables),
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


def pieces_of(tiles: tuple[Int32, Int32, Int32], positions: Int32, tables: Int32) -> PieceArrays:
    """Cut the contexts of tiles into pieces, of each tile one after the other."""
    rows, starts, lengths = tiles
    counts = positions[starts + lengths - 1] // (BLOCK_SIZE * SPLIT_BLOCKS) + 1
    owners = np.repeat(np.arange(len(rows)), counts)
    indices = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = indices[:, None] * SPLIT_BLOCKS + np.arange(SPLIT_BLOCKS)
    blocks = tables[rows[owners][:, None], np.minimum(columns, tables.shape[1] - 1)]
    ends = np.cumsum(counts * lengths)
    return PieceArrays(
        owners.astype(np.int32), indices.astype(np.int32), blocks.astype(np.int32),
        (ends - counts * lengths).astype(np.int32), np.array([len(owners)], np.int32),
        int(ends[-1]) if len(ends) else 0,
    )  # fmt: skip


def pad(step: Arrangement, rows: int, most_pieces: int, scratch: int) -> Arrangement:
    """Pad a decoding step to `rows` rows and samples, and a list of `most_pieces` pieces.

    Padding is rows of one token, whose KV is written to block `scratch` and read back, and whose
    sample is greedy.
    """
    used, pieces = len(step.token_ids), step.pieces
    padding = np.arange(used, rows, dtype=np.int32)
    count = len(pieces.tiles) + len(padding)  # each row of padding has one

    def filled(array: NDArray[Any], value: int, size: int = rows) -> NDArray[Any]:
        rest = np.full((size - len(array), *array.shape[1:]), value, array.dtype)
        return np.concatenate([array, rest])

    tile_rows, starts, lengths = step.split_tiles
    parts = np.concatenate(
        [pieces.parts, np.arange(pieces.num_parts, pieces.num_parts + len(padding))]
    )
    return Arrangement(
        token_ids=filled(step.token_ids, 0),
        positions=filled(step.positions, 0),
        slots=filled(step.slots, scratch * BLOCK_SIZE),
        samples=filled(step.samples, 0),
        sources=filled(step.sources, -1),
        styles=[filled(style, 0) for style in step.styles],
        tables=np.zeros((rows, 0), np.int32),  # whole tiles', of which there are none
        split_tiles=(
            np.concatenate([tile_rows, padding]),
            np.concatenate([starts, padding]),
            filled(lengths, 1),
        ),
        whole_tiles=step.whole_tiles,
        pieces=PieceArrays(
            filled(np.concatenate([pieces.tiles, padding]), 0, most_pieces),
            filled(pieces.indices, 0, most_pieces),
            filled(pieces.blocks, scratch, most_pieces),
            parts.astype(np.int32),
            np.array([count], np.int32),
            most_pieces,
        ),
    )


def most_pieces(rows: int, num_blocks: int, max_context: int) -> int:
    """Return the pieces that so many rows may have in a graph: all that blocks hold, and more where
    rows share them; but none is longer than a context."""
    longest = -(-max_context // (BLOCK_SIZE * SPLIT_BLOCKS))
    held = num_blocks // SPLIT_BLOCKS + rows
    return min(rows * longest, max(held, rows * USUAL_PIECES))
