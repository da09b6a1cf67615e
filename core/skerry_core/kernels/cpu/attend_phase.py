"""The attention phase of a step: threads claim tasks and attend for their tokens, block by block.

A task walks its tile's visits (see `attention_tiles`) with one KV head, and merges partials as it
goes; where a tile has several tasks they keep their partials, and the last of them to finish merges
them all. Either way a token's partials are the same, merged in block order.
"""

from __future__ import annotations

import numpy as np

from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.cpu.attention import ATTEND_BLOCK, clear_state, merge_partials
from skerry_core.kernels.cpu.attention_tiles import own_blocks, position_of, row_of, row_tokens
from skerry_core.kernels.cpu.step_parts import claim_item, floats_at, ints_at, quantize_row, share
from skerry_core.kernels.cpu.step_records import ATTEND, LAYER, TASK, TILE, VIEW
from skerry_core.kernels.simd.aliases import Address, Float32, Record
from skerry_core.kernels.simd.linking import call_by_address
from skerry_core.kernels.simd.memory import array_at, atomic_add, atomic_exchange
from skerry_core.kernels.simd.numba_math import building_block, kernel
from skerry_core.kernels.simd.targets import Target
from skerry_core.kernels.simd.threads import barrier

_call_attend_block = call_by_address(*ATTEND_BLOCK)


@building_block
def _block_address(step: Record, row: int, index: int, layer: int, kv_head: int) -> Address:
    """Return where the K of a row's block is; its V lies `num_kv_heads` pages further."""
    block = ints_at(step.block_tables, row * step.table_width, index + 1)[index]
    page = step.head_dim * BLOCK_SIZE
    return step.kv + 2 * (
        block * step.kv_block_stride + (2 * layer * step.num_kv_heads + kv_head) * page
    )


@kernel
def _visit(
    target: Target,
    step: Record,
    thread: Record,
    layer: int,
    kv_head: int,
    view: Record,
    tile: Record,
    first: int,  # of its tokens
    tokens: int,
    index: int,  # of the block
    ahead: int,  # index of the block that comes next, or the same
    kept: int,  # where partials are kept; -1: in this thread's scratch
    attends: bool,
    merges: bool,
) -> None:
    """Visit a block with some tokens of a tile: make their partials, merge them, or both."""
    dim, group = step.head_dim, step.num_heads // step.num_kv_heads
    order = ints_at(view.order, tile.first + first, tokens)
    seen = array_at(thread.seen, (tokens, 2), np.int64)
    for i in range(tokens):
        end = position_of(step, order[i]) + 1
        seen[i, 0] = max(0, end - view.window - index * BLOCK_SIZE)
        seen[i, 1] = min(BLOCK_SIZE, max(0, end - index * BLOCK_SIZE))
    at, peaks_at = thread.partial, thread.partial_peaks
    if kept >= 0:
        at, peaks_at = step.partials + 4 * dim * kept, step.partial_peaks + 8 * kept
    if attends:
        row = row_of(step, order[0])
        keys = _block_address(step, row, index, layer, kv_head)
        keys_ahead = _block_address(step, row, ahead, layer, kv_head)
        to_values = step.num_kv_heads * 2 * dim * BLOCK_SIZE
        _call_attend_block(
            step.attend_block,
            (target, keys, keys + to_values, keys_ahead, keys_ahead + to_values, dim,
             thread.queries + 4 * dim * group * first, tokens, group, thread.seen, thread.scores,
             thread.widened, at, peaks_at, step.score_cap),
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
    step: Record,
    thread: Record,
    layer: int,
    kv_head: int,
    view: Record,
    tile: Record,
    first: int,  # visits [first, last)
    last: int,
    attends: bool,
    merges: bool,
) -> None:
    """Walk some of a tile's visits in order; see `_visit`."""
    group = step.num_heads // step.num_kv_heads
    slot = tile.kept + kv_head * tile.partials
    i, tokens, index, end = 0, tile.count, tile.begin, tile.shared
    following = 0  # the first token of the next row
    for visit in range(tile.visits):
        while index == end:  # on to a row's own blocks
            i = following
            tokens = row_tokens(step, view, tile, i)
            index, end = own_blocks(step, view, tile, i, tokens)
            following = i + tokens
        if first <= visit < last:
            _visit(
                target, step, thread, layer, kv_head, view, tile, i, tokens,
                index, min(index + 1, end - 1), slot if tile.parts > 1 else -1, attends, merges,
            )  # fmt: skip
        slot += tokens * group
        index += 1


@building_block
def _load_queries(step: Record, thread: Record, kv_head: int, view: Record, tile: Record) -> None:
    """Load a tile's queries with one KV head, scaled, into this thread's scratch."""
    size = step.num_heads // step.num_kv_heads * step.head_dim
    width = (step.num_heads + 2 * step.num_kv_heads) * step.head_dim
    order = ints_at(view.order, tile.first, tile.count)
    for i in range(tile.count):
        source = floats_at(step.qkv, order[i] * width + kv_head * size, size)
        queries = floats_at(thread.queries, i * size, size)
        for d in range(size):
            queries[d] = source[d] * step.query_scale


@building_block
def _write_attended(step: Record, thread: Record, kv_head: int, view: Record, tile: Record) -> None:
    """Write the outputs of a tile's tokens from this thread's states."""
    dim, group = step.head_dim, step.num_heads // step.num_kv_heads
    order = ints_at(view.order, tile.first, tile.count)
    state = array_at(thread.state, (tile.count * group, dim), np.float32)
    state_peaks = array_at(thread.state_peaks, (tile.count * group, 2), np.float32)
    for q in range(tile.count * group):
        token, head = order[q // group], kv_head * group + q % group
        out = floats_at(step.attended, (token * step.num_heads + head) * dim, dim)
        inverse = np.float32(1.0) / state_peaks[q, 1]
        for d in range(dim):
            out[d] = state[q, d] * inverse


@building_block
def _begin_with_sinks(step: Record, layer: int, kv_head: int, state_peaks: Float32) -> None:
    """Begin queries as if each had seen its head's sink first, which has no value."""
    group = step.num_heads // step.num_kv_heads
    sinks = floats_at(step.sinks, layer * step.num_heads + kv_head * group, group)
    for q in range(state_peaks.shape[0]):
        state_peaks[q, 0], state_peaks[q, 1] = sinks[q % group], np.float32(1.0)


@kernel
def _run_task(
    target: Target,
    step: Record,
    thread: Record,
    layer: int,
    view: Record,
    task: Record,
    kv_head: int,
) -> None:
    tile: Record = array_at(view.tiles, (step.num_tokens,), TILE)[task.tile]
    queries = tile.count * (step.num_heads // step.num_kv_heads)
    state = array_at(thread.state, (queries, step.head_dim), np.float32)
    state_peaks = array_at(thread.state_peaks, (queries, 2), np.float32)
    _load_queries(step, thread, kv_head, view, tile)
    clear_state(state, state_peaks)
    if step.sinks:
        _begin_with_sinks(step, layer, kv_head, state_peaks)
    first, last, attends, merges = task.first, task.last, True, tile.parts == 1
    while True:  # once, or again to merge what all parts kept
        _walk(target, step, thread, layer, kv_head, view, tile, first, last, attends, merges)
        if merges:
            break
        finished = step.finished_parts + 8 * (task.tile * step.num_kv_heads + kv_head)
        if atomic_add(finished, 1) < tile.parts - 1:
            return
        atomic_exchange(finished, 0)
        first, last, attends, merges = 0, tile.visits, False, True
    _write_attended(step, thread, kv_head, view, tile)


@kernel
def attend(target: Target, step: Record, thread: Record, layer: int) -> None:
    """Attend for all tokens, then quantise that in even shares, a barrier between."""
    which = array_at(step.layers, (step.num_layers,), LAYER)[layer].view_index
    view: Record = array_at(step.views, (step.num_views,), VIEW)[which]
    tasks = array_at(view.tasks, (view.num_tasks,), TASK)
    item = claim_item(step, layer, ATTEND)
    while item < view.num_tasks * step.num_kv_heads:
        task, kv_head = tasks[item // step.num_kv_heads], item % step.num_kv_heads
        _run_task(target, step, thread, layer, view, task, kv_head)
        item = claim_item(step, layer, ATTEND)
    barrier(step.sync, step.num_threads)
    first, last = share(step.num_tokens, step, thread)
    for t in range(first, last):
        quantize_row(step.attended, step.quants, step.headers, t, step.num_heads * step.head_dim)
