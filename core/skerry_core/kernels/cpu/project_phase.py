"""The phase of a step that projects queries, keys and values, and writes to the cache."""

from __future__ import annotations

import numpy as np

from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.cpu.rowwise import rms_norm, rope, to_half
from skerry_core.kernels.cpu.step_parts import (
    KEY,
    QUERY,
    VALUE,
    claim_item,
    floats_at,
    ints_at,
    matrix_of,
    multiply,
    normed_rows,
    share,
)
from skerry_core.kernels.cpu.step_records import HEAD_NORM, LAYER, PROJECT, WHOLE_NORM
from skerry_core.kernels.simd.aliases import Address, Record
from skerry_core.kernels.simd.memory import array_at
from skerry_core.kernels.simd.numba_math import building_block, kernel
from skerry_core.kernels.simd.targets import Target
from skerry_core.kernels.simd.threads import barrier


@building_block
def _rope_table(step: Record, layer: int) -> Address:
    """Return the address of f32[rope_positions, 2, rotary_dim / 2]; 0 where nothing is rotated."""
    rope = array_at(step.layers, (step.num_layers,), LAYER)[layer].rope
    return step.rope_tables + 4 * rope * step.rope_positions * step.rotary_dim if rope >= 0 else 0


@building_block
def _write_cache(
    target: Target,
    step: Record,
    thread: Record,
    layer: int,
    kv_head: int,
    which: int,
    values: Address,
    t: int,
    position: int,
) -> None:
    """Write one token's key (which = 0) or value (1) of one KV head to its slot in the cache."""
    dim = step.head_dim
    row = ints_at(step.token_rows, t, 1)[0]
    block = ints_at(step.block_tables, row * step.table_width + position // BLOCK_SIZE, 1)[0]
    slot = position % BLOCK_SIZE
    page = step.kv + 2 * (
        block * step.kv_block_stride
        + ((layer * 2 + which) * step.num_kv_heads + kv_head) * dim * BLOCK_SIZE
    )
    if which == 1:
        to_half(target, values, dim, page + 2 * slot * dim)
        return
    to_half(target, values, dim, thread.half)
    half = array_at(thread.half, (dim,), np.uint16)
    transposed = array_at(page, (dim, BLOCK_SIZE), np.uint16)
    for i in range(dim):
        transposed[i, slot] = half[i]


@kernel
def _finish_head(
    target: Target, step: Record, thread: Record, layer: int, item: int, t: int
) -> None:
    """Norm and rotate a token's q or k of one head, and write its k or v; items as in `project`."""
    dim, heads, kv_heads = step.head_dim, step.num_heads, step.num_kv_heads
    width, half = (heads + 2 * kv_heads) * dim, step.rotary_dim // 2
    which, head = _split(step, item)
    at = step.qkv + 4 * (t * width + item * dim)
    values = floats_at(at, 0, dim)
    position = ints_at(step.positions, t, 1)[0]
    if which != VALUE and step.qk_norm == HEAD_NORM:
        weight = floats_at(step.head_norms, (2 * layer + which) * dim, dim)
        rms_norm(values, weight, step.eps, values)
    rope_table = _rope_table(step, layer)
    if which != VALUE and rope_table:
        angles = floats_at(rope_table, position * 2 * half, 2 * half)
        rope(values, angles[:half], angles[half:])
    if which != QUERY:
        _write_cache(target, step, thread, layer, head, which - KEY, at, t, position)


@building_block
def _split(step: Record, item: int) -> tuple[int, int]:
    """Return which matrix an item's head is of, and its number there."""
    if item < step.num_heads:
        return QUERY, item
    if item < step.num_heads + step.num_kv_heads:
        return KEY, item - step.num_heads
    return VALUE, item - step.num_heads - step.num_kv_heads


@kernel
def _norm_across_heads(step: Record, layer: int, t: int) -> None:
    """Norm a token's queries all together, and its keys."""
    dim, heads, kv_heads = step.head_dim, step.num_heads, step.num_kv_heads
    queries, keys = heads * dim, kv_heads * dim
    start, weights = t * (queries + 2 * keys), layer * (queries + keys)
    row = floats_at(step.qkv, start, queries)
    rms_norm(row, floats_at(step.head_norms, weights, queries), step.eps, row)
    row = floats_at(step.qkv, start + queries, keys)
    rms_norm(row, floats_at(step.head_norms, weights + queries, keys), step.eps, row)


@kernel
def project(target: Target, step: Record, thread: Record, layer: int) -> None:
    """Project heads of q, k and v for all tokens; norm and rotate q and k; write k and v.

    An item is a head. Where norms are across heads, tokens are finished after a barrier.
    """
    dim, tokens = step.head_dim, step.num_tokens
    items = step.num_heads + 2 * step.num_kv_heads
    width = items * dim
    floats, quants, headers = normed_rows(step, thread, tokens)
    item = claim_item(step, layer, PROJECT)
    while item < items:
        which, head = _split(step, item)
        multiply(
            target, step, matrix_of(step, layer, which), head * dim, dim, floats, quants, headers,
            step.hidden_size, step.qkv + 4 * (item - head) * dim, width, tokens,
        )  # fmt: skip
        if step.biases:
            bias = floats_at(step.biases, layer * width + item * dim, dim)
            for t in range(tokens):
                values = floats_at(step.qkv, t * width + item * dim, dim)
                for i in range(dim):
                    values[i] += bias[i]
        if step.qk_norm != WHOLE_NORM:
            for t in range(tokens):
                _finish_head(target, step, thread, layer, item, t)
        item = claim_item(step, layer, PROJECT)
    if step.qk_norm == WHOLE_NORM:
        barrier(step.sync, step.num_threads)
        first, last = share(tokens, step, thread)
        for t in range(first, last):
            _norm_across_heads(step, layer, t)
            for head in range(items):
                _finish_head(target, step, thread, layer, head, t)
