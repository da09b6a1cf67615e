"""How a step's attention is divided: tiles of tokens that read the same blocks, and tasks.

A tile is a few tokens that see the same leading blocks: neighbours of one sequence, or tokens of
sequences with a common (cached) prefix, which then is read once for all of them. A tile's visits
are its shared blocks in order, each attended by all its tokens, then the rest of each row's blocks,
row by row. One task walks a tile's visits; a tile with a large part of the step's work has several.
"""

from __future__ import annotations

import numpy as np

from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.cpu.step_parts import ints_at
from skerry_core.kernels.cpu.step_records import MAX_TILE_TOKENS, TASK, TILE, VIEW
from skerry_core.kernels.simd.aliases import Record
from skerry_core.kernels.simd.memory import array_at
from skerry_core.kernels.simd.numba_math import building_block, kernel
from skerry_core.kernels.simd.targets import Target

ROW_TILE_TOKENS = 16  # of one sequence: neighbours see almost the same blocks
_TASKS_PER_THREAD = 8  # that a step should have at least, for threads to end together
_LEAST_VISITS = 2  # of a part of a tile
_VISIT_QUERIES = 6  # that cost about as much as one


@building_block
def position_of(step: Record, token: int) -> int:
    return int(ints_at(step.positions, 0, step.num_tokens)[token])


@building_block
def row_of(step: Record, token: int) -> int:
    return int(ints_at(step.token_rows, 0, step.num_tokens)[token])


@building_block
def _blocks(position: int) -> int:
    """Return how many blocks there are up to the one with this position."""
    return position // BLOCK_SIZE + 1


@building_block
def _first_block(view: Record, position: int) -> int:
    """Return the first block that the token at a position sees."""
    return max(0, position + 1 - view.window) // BLOCK_SIZE


@kernel
def _common_blocks(step: Record, row: int, other: int, most: int) -> int:
    """Count leading blocks that two rows share, up to `most`."""
    mine = ints_at(step.block_tables, row * step.table_width, most)
    theirs = ints_at(step.block_tables, other * step.table_width, most)
    count = 0
    while count < most and mine[count] == theirs[count]:
        count += 1
    return count


@building_block
def _put_tokens(step: Record, view: Record, tile: Record, first: int, last: int) -> None:
    order = ints_at(view.order, 0, step.num_tokens)
    for t in range(first, last):
        order[tile.first + tile.count] = t
        tile.count += 1


@kernel
def _gather_rows(step: Record, view: Record, tile: Record, row: int) -> None:
    """Fill a tile with a row of few tokens, and with later ones whose prefix it shares.

    Another row joins while that saves reading blocks. Its tokens are marked as placed.
    """
    starts = ints_at(step.query_start, 0, step.num_rows + 1)
    placed = ints_at(step.placed, 0, step.num_rows)
    tables = array_at(step.block_tables, (step.num_rows, step.table_width), np.int32)
    members = 1
    for other in range(row + 1, step.num_rows):
        first, last = starts[other], starts[other + 1]
        if (
            tables[other, 0] != tables[row, 0]
            or placed[other]
            or last - first > ROW_TILE_TOKENS
            or tile.count + last - first > MAX_TILE_TOKENS
        ):
            continue
        most = min(tile.shared, _blocks(position_of(step, last - 1)))
        common = _common_blocks(step, row, other, most)
        if members * (common - tile.begin) <= (members - 1) * (tile.shared - tile.begin):
            continue
        tile.shared = common
        tile.begin = min(tile.begin, _first_block(view, position_of(step, first)))
        members += 1
        placed[other] = 1
        _put_tokens(step, view, tile, first, last)


@kernel
def _make_tiles(step: Record, view: Record) -> int:
    """Divide the step's tokens into tiles; gives how many."""
    starts = ints_at(step.query_start, 0, step.num_rows + 1)
    token_rows = ints_at(step.token_rows, 0, step.num_tokens)
    placed = ints_at(step.placed, 0, step.num_rows)
    for row in range(step.num_rows):
        placed[row] = 0
        for t in range(starts[row], starts[row + 1]):
            token_rows[t] = row
    tiles = array_at(view.tiles, (step.num_tokens,), TILE)
    num_tiles = filled = 0
    for row in range(step.num_rows):
        if placed[row]:
            continue
        for first in range(starts[row], starts[row + 1], ROW_TILE_TOKENS):
            last = min(first + ROW_TILE_TOKENS, starts[row + 1])
            tile = tiles[num_tiles]
            tile.first, tile.count = filled, 0
            tile.begin = _first_block(view, position_of(step, first))
            tile.shared = _blocks(position_of(step, last - 1))
            _put_tokens(step, view, tile, first, last)
            if starts[row + 1] - starts[row] <= ROW_TILE_TOKENS:
                _gather_rows(step, view, tile, row)
            filled += tile.count
            num_tiles += 1
    return num_tiles


@building_block
def row_tokens(step: Record, view: Record, tile: Record, i: int) -> int:
    """Count a tile's tokens, from the i-th on, that are of the same row."""
    order = ints_at(view.order, tile.first, tile.count)
    count = 1
    while i + count < tile.count and row_of(step, order[i + count]) == row_of(step, order[i]):
        count += 1
    return count


@building_block
def own_blocks(step: Record, view: Record, tile: Record, i: int, tokens: int) -> tuple[int, int]:
    """Return blocks [first, last) that a tile's tokens of one row read apart from the others."""
    order = ints_at(view.order, tile.first, tile.count)
    first = max(tile.shared, _first_block(view, position_of(step, order[i])))
    return first, max(first, _blocks(position_of(step, order[i + tokens - 1])))


@building_block
def _passes(queries: int) -> int:
    return (queries + _VISIT_QUERIES - 1) // _VISIT_QUERIES


@kernel
def _measure(step: Record, view: Record, tile: Record) -> None:
    """Count a tile's visits, their partials, and what they cost."""
    group = step.num_heads // step.num_kv_heads
    tile.visits = tile.shared - tile.begin
    tile.partials = tile.visits * tile.count * group
    tile.cost = tile.visits * _passes(tile.count * group)
    i = 0
    while i < tile.count:
        tokens = row_tokens(step, view, tile, i)
        first, last = own_blocks(step, view, tile, i, tokens)
        tile.visits += last - first
        tile.partials += (last - first) * tokens * group
        tile.cost += (last - first) * _passes(tokens * group)
        i += tokens


@kernel
def _divide(step: Record, view: Record) -> None:
    """Make the tiles and tasks of layers with a view."""
    num_tiles = _make_tiles(step, view)
    tiles = array_at(view.tiles, (step.num_tokens,), TILE)
    total = 0
    visits = 0
    for index in range(num_tiles):
        tile = tiles[index]
        _measure(step, view, tile)
        total += tile.cost * step.num_kv_heads
        visits += tile.visits
    wanted = max(1, total // (step.num_threads * _TASKS_PER_THREAD))
    tasks = array_at(view.tasks, (step.num_tokens + step.most_parts,), TASK)
    num_tasks = kept = 0
    parts_left = step.most_parts
    # Later tiles of a prompt see longer contexts: heavy first balances the threads.
    for index in range(num_tiles - 1, -1, -1):
        tile = tiles[index]
        size = tile.partials * step.num_kv_heads
        parts = min(tile.cost // wanted, tile.visits // _LEAST_VISITS, parts_left)
        if step.num_threads == 1 or parts < 2 or kept + size > step.most_partials:
            parts = 1
        tile.parts, tile.kept = parts, kept
        if parts > 1:
            kept += size
            parts_left -= parts
        for part in range(parts):
            task = tasks[num_tasks]
            task.tile = index
            task.first = tile.visits * part // parts
            task.last = tile.visits * (part + 1) // parts
            num_tasks += 1
    view.num_tasks, view.visits = num_tasks, visits


@kernel
def divide_attention(target: Target, step: Record, thread: Record, layer: int) -> None:
    """Make the step's tiles and tasks, once for each view of its layers."""
    views = array_at(step.views, (step.num_views,), VIEW)
    for index in range(step.num_views):
        _divide(step, views[index])
