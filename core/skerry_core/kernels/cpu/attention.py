"""Attention over paged KV in blocks of 64 tokens.

For one query and one block, a partial: `m = max(score)`, `p = exp(score - m)`, `l = sum(p)`,
`acc = sum(p * v)`. Partials are merged in block order and never split, so a token's output depends
on its context alone (Dao et al., FlashAttention; Rabe and Staats, 2021):

    M = max(m, m_block); keep = exp(m - M); add = exp(m_block - M)
    l = fma(l, keep, l_block * add); acc = fma(acc, keep, acc_block * add)

beginning with m = -inf, l = 0, acc = 0.

A block of KV of one layer and head: K transposed, f16[head_dim, 64]; V as it comes,
f16[64, head_dim]. Query heads that share a KV head, and tokens that see the same block, read it
together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.cpu.rowwise import cap
from skerry_core.kernels.cpu.weighted_sums import FLOATS, weighted_sums
from skerry_core.kernels.simd.aliases import Address, Float32, Int64
from skerry_core.kernels.simd.emitter import I32, LANES, Emitter, vector
from skerry_core.kernels.simd.linking import TARGET
from skerry_core.kernels.simd.memory import array_at
from skerry_core.kernels.simd.numba_math import building_block, exp_f32, fma, intrinsic, kernel
from skerry_core.kernels.simd.targets import Target

_SLOT_VECTORS = BLOCK_SIZE // LANES


@intrinsic
def _softmax_block(typing_context: Any, scores: Any, first: Any, last: Any) -> Any:
    """Turn f32[64] scores at an address into `p = exp(score - m)`; gives (m, sum of p).

    Slots outside [first, last) count as -inf; one at least is inside. The sum runs in 16 lanes,
    folded in halves.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        e, b = Emitter(builder), builder
        scores, first, last = arguments
        words = vector(I32, LANES)
        start, end = (e.splat(b.trunc(limit, I32), LANES) for limit in (first, last))
        lowest = e.constant(FLOATS, float(np.finfo(np.float32).min))
        masks, values = [], []
        for v in range(_SLOT_VECTORS):
            lanes = words([I32(v * LANES + lane) for lane in range(LANES)])
            inside = b.icmp_signed(">=", lanes, start), b.icmp_signed("<", lanes, end)
            masks.append(b.and_(*inside))
            value = e.load(e.offset(scores, v, 4 * LANES), FLOATS, align=4)
            values.append(b.select(masks[v], value, lowest))
        largest = values[0]
        for value in values[1:]:
            largest = e.maximum(largest, value)
        m = e.fold(largest, e.maximum)
        shift = e.splat(m, LANES)
        total = e.constant(FLOATS, 0.0)
        for v, value in enumerate(values):
            p = e.exp(b.fsub(value, shift))
            p = b.select(masks[v], p, e.constant(FLOATS, 0.0))
            total = b.fadd(total, p)
            e.store(p, e.offset(scores, v, 4 * LANES), align=4)
        pair = context.make_tuple(builder, signature.return_type, (m, e.fold(total, builder.fadd)))
        return pair

    return types.UniTuple(types.float32, 2)(types.int64, types.int64, types.int64), codegen


@building_block
def clear_state(state: Float32, state_peaks: Float32) -> None:
    """Begin some queries: state f32[Q, head_dim] (acc), state_peaks f32[Q, 2] (m, l)."""
    state[:] = np.float32(0.0)
    state_peaks[:, 0] = np.float32(-np.inf)
    state_peaks[:, 1] = np.float32(0.0)


@building_block
def merge_partials(
    state: Float32,
    state_peaks: Float32,
    partial: Float32,
    peaks: Float32,
    seen: Int64,
    group: int,
) -> None:
    """Merge a block's partials into the states of its queries, in place.

    state, partial f32[Q, head_dim]: acc; state_peaks, peaks f32[Q, 2]: (m, l); the rest as in
    `attend_block`.
    """
    for i in range(seen.shape[0]):
        if seen[i, 0] >= seen[i, 1]:
            continue
        for q in range(i * group, (i + 1) * group):
            largest = max(state_peaks[q, 0], peaks[q, 0])
            keep, add = exp_f32(state_peaks[q, 0] - largest), exp_f32(peaks[q, 0] - largest)
            for d in range(state.shape[1]):
                state[q, d] = fma(state[q, d], keep, partial[q, d] * add)
            state_peaks[q, 0] = largest
            state_peaks[q, 1] = fma(state_peaks[q, 1], keep, peaks[q, 1] * add)


ATTEND_BLOCK = (TARGET, *[types.int64] * 13, types.float32)  # argument types of `attend_block`


@kernel
def attend_block(
    target: Target,
    keys: Address,  # of the block's K: f16[head_dim, 64]
    values: Address,  # of the block's V: f16[64, head_dim]
    keys_ahead: Address,  # of the block that is attended next, or of this one
    values_ahead: Address,
    head_dim: int,
    queries: Address,  # f32[tokens * group, head_dim], scaled
    tokens: int,
    group: int,  # queries per token
    seen: Address,  # i64[tokens, 2]: slots [first, last) that each token sees; none: no partial
    scores: Address,  # f32[tokens * group, 64], scratch
    widened: Address,  # f32[64 * head_dim], scratch
    partial: Address,  # f32[tokens * group, head_dim], written: acc
    peaks: Address,  # f32[tokens * group, 2], written: (m, l)
    score_cap: np.float32,  # c in c * tanh(score / c); 0: scores stay
) -> None:
    """Compute the partials of some queries over one block."""
    slots = array_at(seen, (tokens, 2), np.int64)
    num_queries = tokens * group
    written_peaks = array_at(peaks, (num_queries, 2), np.float32)
    most = 0
    for i in range(tokens):
        most = max(most, slots[i, 1])
    columns = (most + LANES - 1) // LANES * LANES
    dim_bytes, slot_bytes = 4 * head_dim, 4 * BLOCK_SIZE
    weighted_sums(
        target, keys, 2 * BLOCK_SIZE, keys_ahead, queries, dim_bytes, head_dim,
        scores, slot_bytes, columns, num_queries, widened,
    )  # fmt: skip
    if score_cap > np.float32(0.0):
        for q in range(num_queries):
            cap(array_at(scores + q * slot_bytes, (columns,), np.float32), score_cap)
    for i in range(tokens):
        for q in range(i * group, (i + 1) * group):
            if slots[i, 0] < slots[i, 1]:
                m, total = _softmax_block(scores + q * slot_bytes, slots[i, 0], slots[i, 1])
                written_peaks[q, 0], written_peaks[q, 1] = m, total
            else:
                array_at(scores + q * slot_bytes, (BLOCK_SIZE,), np.float32)[:] = np.float32(0.0)
    weighted_sums(
        target, values, 2 * head_dim, values_ahead, scores, slot_bytes, most,
        partial, dim_bytes, head_dim, num_queries, widened,
    )  # fmt: skip
