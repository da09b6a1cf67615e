"""The attention phase of a step: which thread attends for which tokens over which blocks.

A tile is a few tokens that see the same leading blocks: neighbours of one sequence, or tokens of
sequences with a common (cached) prefix, which then is read once for all of them. A tile's visits
are its shared blocks in order, each attended by all its tokens, then the rest of each row's blocks,
row by row.

One task walks a tile's visits with one KV head, and merges partials as it goes; but a tile with a
large part of the step's work has several tasks, which keep their partials, and the last of them to
finish merges them all. Either way a token's partials are the same, merged in block order.
"""

from __future__ import annotations

import numpy as np

from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.cpu.attention import (
    ATTEND_BLOCK,
    clear_state,
    merge_partials,
)
from skerry_core.kernels.cpu.plan import ATTEND, MAX_TILE_TOKENS, TASK, TILE
from skerry_core.kernels.cpu.step_parts import claim_item, floats_at, ints_at, quantize_row, share
from skerry_core.kernels.simd.aliases import Address, Record
from skerry_core.kernels.simd.linking import call_by_address
from skerry_core.kernels.simd.memory import array_at, atomic_add, atomic_exchange
from skerry_core.kernels.simd.numba_math import building_block, kernel
from skerry_core.kernels.simd.targets import Target
from skerry_core.kernels.simd.threads import barrier

ROW_TILE_TOKENS = 16  # of one sequence: neighbours see almost the same blocks
_TASKS_PER_THREAD = 8  # that a step should have at least, for threads to end together
_LEAST_VISITS = 2  # of a part of a tile
_VISIT_QUERIES = 6  # that cost about as much as one

_call_attend_block = call_by_address(*ATTEND_BLOCK)


# Planning, by one thread


@building_block
def _position(plan: Record, token: int) -> int:
    return int(ints_at(plan.positions, 0, plan.num_tokens)[token])


@building_block
def _row(plan: Record, token: int) -> int:
    return int(ints_at(plan.token_rows, 0, plan.num_tokens)[token])


@building_block
def _blocks(position: int) -> int:
    """Blocks up to the one with this position."""
    return position // BLOCK_SIZE + 1


@building_block
def _first_block(plan: Record, position: int) -> int:
    """The first block that the token at a position sees."""
    return max(0, position + 1 - plan.window) // BLOCK_SIZE


@kernel
def _common_blocks(plan: Record, row: int, other: int, most: int) -> int:
    """Leading blocks that two rows share, up to `most`."""
    mine = ints_at(plan.block_tables, row * plan.table_width, most)
    theirs = ints_at(plan.block_tables, other * plan.table_width, most)
    count = 0
    while count < most and mine[count] == theirs[count]:
        count += 1
    return count


@building_block
def _put_tokens(plan: Record, tile: Record, first: int, last: int) -> None:
    order = ints_at(plan.order, 0, plan.num_tokens)
    for t in range(first, last):
        order[tile.first + tile.count] = t
        tile.count += 1


@kernel
def _gather_rows(plan: Record, tile: Record, row: int) -> None:
    """Fill a tile with a row of few tokens, and with later ones whose prefix it shares.

    Another row joins while that saves reading blocks. Its tokens are marked as placed.
    """
    starts = ints_at(plan.query_start, 0, plan.num_rows + 1)
    placed = ints_at(plan.placed, 0, plan.num_rows)
    tables = array_at(plan.block_tables, (plan.num_rows, plan.table_width), np.int32)
    members = 1
    for other in range(row + 1, plan.num_rows):
        first, last = starts[other], starts[other + 1]
        if (
            tables[other, 0] != tables[row, 0]
            or placed[other]
            or last - first > ROW_TILE_TOKENS
            or tile.count + last - first > MAX_TILE_TOKENS
        ):
            continue
        most = min(tile.shared, _blocks(_position(plan, last - 1)))
        common = _common_blocks(plan, row, other, most)
        if members * (common - tile.begin) <= (members - 1) * (tile.shared - tile.begin):
            continue
        tile.shared = common
        tile.begin = min(tile.begin, _first_block(plan, _position(plan, first)))
        members += 1
        placed[other] = 1
        _put_tokens(plan, tile, first, last)


@kernel
def _make_tiles(plan: Record) -> int:
    """Divide the step's tokens into tiles; gives how many."""
    starts = ints_at(plan.query_start, 0, plan.num_rows + 1)
    token_rows = ints_at(plan.token_rows, 0, plan.num_tokens)
    placed = ints_at(plan.placed, 0, plan.num_rows)
    for row in range(plan.num_rows):
        placed[row] = 0
        for t in range(starts[row], starts[row + 1]):
            token_rows[t] = row
    tiles = array_at(plan.tiles, (plan.num_tokens,), TILE)
    num_tiles = filled = 0
    for row in range(plan.num_rows):
        if placed[row]:
            continue
        for first in range(starts[row], starts[row + 1], ROW_TILE_TOKENS):
            last = min(first + ROW_TILE_TOKENS, starts[row + 1])
            tile = tiles[num_tiles]
            tile.first, tile.count = filled, 0
            tile.begin = _first_block(plan, _position(plan, first))
            tile.shared = _blocks(_position(plan, last - 1))
            _put_tokens(plan, tile, first, last)
            if starts[row + 1] - starts[row] <= ROW_TILE_TOKENS:
                _gather_rows(plan, tile, row)
            filled += tile.count
            num_tiles += 1
    return num_tiles


@building_block
def _row_tokens(plan: Record, tile: Record, i: int) -> int:
    """How many of a tile's tokens, from the i-th on, are of the same row."""
    order = ints_at(plan.order, tile.first, tile.count)
    count = 1
    while i + count < tile.count and _row(plan, order[i + count]) == _row(plan, order[i]):
        count += 1
    return count


@building_block
def _own_blocks(plan: Record, tile: Record, i: int, tokens: int) -> tuple[int, int]:
    """Blocks [first, last) that a tile's tokens of one row read apart from the others."""
    order = ints_at(plan.order, tile.first, tile.count)
    first = max(tile.shared, _first_block(plan, _position(plan, order[i])))
    return first, max(first, _blocks(_position(plan, order[i + tokens - 1])))


@building_block
def _passes(queries: int) -> int:
    return (queries + _VISIT_QUERIES - 1) // _VISIT_QUERIES


@kernel
def _measure(plan: Record, tile: Record) -> None:
    """Count a tile's visits, their partials, and what they cost."""
    group = plan.num_heads // plan.num_kv_heads
    tile.visits = tile.shared - tile.begin
    tile.partials = tile.visits * tile.count * group
    tile.cost = tile.visits * _passes(tile.count * group)
    i = 0
    while i < tile.count:
        tokens = _row_tokens(plan, tile, i)
        first, last = _own_blocks(plan, tile, i, tokens)
        tile.visits += last - first
        tile.partials += (last - first) * tokens * group
        tile.cost += (last - first) * _passes(tokens * group)
        i += tokens


@kernel
def plan_attention(target: Target, plan: Record, thread: Record, layer: int) -> None:
    """Make the step's tiles and tasks."""
    num_tiles = _make_tiles(plan)
    tiles = array_at(plan.tiles, (plan.num_tokens,), TILE)
    total = 0
    visits = 0
    for index in range(num_tiles):
        tile = tiles[index]
        _measure(plan, tile)
        total += tile.cost * plan.num_kv_heads
        visits += tile.visits
    wanted = max(1, total // (plan.num_threads * _TASKS_PER_THREAD))
    tasks = array_at(plan.tasks, (plan.num_tokens + plan.most_parts,), TASK)
    num_tasks = kept = 0
    parts_left = plan.most_parts
    # Later tiles of a prompt see longer contexts: heavy first balances the threads.
    for index in range(num_tiles - 1, -1, -1):
        tile = tiles[index]
        size = tile.partials * plan.num_kv_heads
        parts = min(tile.cost // wanted, tile.visits // _LEAST_VISITS, parts_left)
        if plan.num_threads == 1 or parts < 2 or kept + size > plan.most_partials:
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
    totals = array_at(plan.attention_totals, (2,), np.int64)
    totals[0], totals[1] = num_tasks, visits


# Attending


@building_block
def _block_address(plan: Record, row: int, index: int, layer: int, kv_head: int) -> Address:
    """Of the K of a row's block; its V lies `num_kv_heads` pages further."""
    block = ints_at(plan.block_tables, row * plan.table_width, index + 1)[index]
    page = plan.head_dim * BLOCK_SIZE
    return plan.kv + 2 * (
        block * plan.kv_block_stride + (2 * layer * plan.num_kv_heads + kv_head) * page
    )


@kernel
def _visit(
    target: Target,
    plan: Record,
    thread: Record,
    layer: int,
    kv_head: int,
    tile: Record,
    first: int,  # of its tokens
    tokens: int,
    index: int,  # of the block
    ahead: int,  # index of the block that comes next, or the same
    kept: int,  # where partials are kept; -1: in this thread's scratch
    attends: bool,
    merges: bool,
) -> None:
    """Some tokens of a tile and one block: make their partials, merge them, or both."""
    dim, group = plan.head_dim, plan.num_heads // plan.num_kv_heads
    order = ints_at(plan.order, tile.first + first, tokens)
    seen = array_at(thread.seen, (tokens, 2), np.int64)
    for i in range(tokens):
        end = _position(plan, order[i]) + 1
        seen[i, 0] = max(0, end - plan.window - index * BLOCK_SIZE)
        seen[i, 1] = min(BLOCK_SIZE, max(0, end - index * BLOCK_SIZE))
    at, peaks_at = thread.partial, thread.partial_peaks
    if kept >= 0:
        at, peaks_at = plan.partials + 4 * dim * kept, plan.partial_peaks + 8 * kept
    if attends:
        row = _row(plan, order[0])
        keys = _block_address(plan, row, index, layer, kv_head)
        keys_ahead = _block_address(plan, row, ahead, layer, kv_head)
        to_values = plan.num_kv_heads * 2 * dim * BLOCK_SIZE
        _call_attend_block(
            plan.attend_block,
            (target, keys, keys + to_values, keys_ahead, keys_ahead + to_values, dim,
             thread.queries + 4 * dim * group * first, tokens, group, thread.seen, thread.scores,
             thread.widened, at, peaks_at),
        )  # fmt: skip
    if merges:
        queries = tokens * group
        merge_partials(
            array_at(thread.state + 4 * dim * group * first, (queries, dim), np.float32),
            array_at(thread.state_peaks + 8 * group * first, (queries, 2), np.float32),
            array_at(at, (queries, dim), np.float32),
            array_at(peaks_at, (queries, 2), np.float32),
            seen,
            group,
        )


@kernel
def _walk(
    target: Target,
    plan: Record,
    thread: Record,
    layer: int,
    kv_head: int,
    tile: Record,
    first: int,  # visits [first, last)
    last: int,
    attends: bool,
    merges: bool,
) -> None:
    """Some of a tile's visits in order; see `_visit`."""
    group = plan.num_heads // plan.num_kv_heads
    slot = tile.kept + kv_head * tile.partials
    i, tokens, index, end = 0, tile.count, tile.begin, tile.shared
    following = 0  # the first token of the next row
    for visit in range(tile.visits):
        while index == end:  # on to a row's own blocks
            i = following
            tokens = _row_tokens(plan, tile, i)
            index, end = _own_blocks(plan, tile, i, tokens)
            following = i + tokens
        if first <= visit < last:
            _visit(
                target, plan, thread, layer, kv_head, tile, i, tokens,
                index, min(index + 1, end - 1), slot if tile.parts > 1 else -1, attends, merges,
            )  # fmt: skip
        slot += tokens * group
        index += 1


@building_block
def _load_queries(plan: Record, thread: Record, kv_head: int, tile: Record) -> None:
    """Scaled queries of a tile's tokens with one KV head, to this thread's scratch."""
    size = plan.num_heads // plan.num_kv_heads * plan.head_dim
    width = (plan.num_heads + 2 * plan.num_kv_heads) * plan.head_dim
    order = ints_at(plan.order, tile.first, tile.count)
    for i in range(tile.count):
        source = floats_at(plan.qkv, order[i] * width + kv_head * size, size)
        queries = floats_at(thread.queries, i * size, size)
        for d in range(size):
            queries[d] = source[d] * plan.query_scale


@building_block
def _write_attended(plan: Record, thread: Record, kv_head: int, tile: Record) -> None:
    """Outputs of a tile's tokens from this thread's states."""
    dim, group = plan.head_dim, plan.num_heads // plan.num_kv_heads
    order = ints_at(plan.order, tile.first, tile.count)
    state = array_at(thread.state, (tile.count * group, dim), np.float32)
    state_peaks = array_at(thread.state_peaks, (tile.count * group, 2), np.float32)
    for q in range(tile.count * group):
        token, head = order[q // group], kv_head * group + q % group
        out = floats_at(plan.attended, (token * plan.num_heads + head) * dim, dim)
        inverse = np.float32(1.0) / state_peaks[q, 1]
        for d in range(dim):
            out[d] = state[q, d] * inverse


@kernel
def _run_task(
    target: Target, plan: Record, thread: Record, layer: int, task: Record, kv_head: int
) -> None:
    tile: Record = array_at(plan.tiles, (plan.num_tokens,), TILE)[task.tile]
    queries = tile.count * (plan.num_heads // plan.num_kv_heads)
    state = array_at(thread.state, (queries, plan.head_dim), np.float32)
    state_peaks = array_at(thread.state_peaks, (queries, 2), np.float32)
    _load_queries(plan, thread, kv_head, tile)
    clear_state(state, state_peaks)
    first, last, attends, merges = task.first, task.last, True, tile.parts == 1
    while True:  # once, or again to merge what all parts kept
        _walk(target, plan, thread, layer, kv_head, tile, first, last, attends, merges)
        if merges:
            break
        finished = plan.finished_parts + 8 * (task.tile * plan.num_kv_heads + kv_head)
        if atomic_add(finished, 1) < tile.parts - 1:
            return
        atomic_exchange(finished, 0)
        first, last, attends, merges = 0, tile.visits, False, True
    _write_attended(plan, thread, kv_head, tile)


@kernel
def attend(target: Target, plan: Record, thread: Record, layer: int) -> None:
    """Attention of all tokens, then its quantisation by even shares, a barrier between."""
    num_tasks = array_at(plan.attention_totals, (2,), np.int64)[0]
    tasks = array_at(plan.tasks, (num_tasks,), TASK)
    item = claim_item(plan, layer, ATTEND)
    while item < num_tasks * plan.num_kv_heads:
        task, kv_head = tasks[item // plan.num_kv_heads], item % plan.num_kv_heads
        _run_task(target, plan, thread, layer, task, kv_head)
        item = claim_item(plan, layer, ATTEND)
    barrier(plan.sync, plan.num_threads)
    first, last = share(plan.num_tokens, plan, thread)
    for t in range(first, last):
        quantize_row(plan.attended, plan.quants, plan.headers, t, plan.num_heads * plan.head_dim)
