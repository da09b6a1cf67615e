"""Attention over paged KV in blocks of 64 tokens.

For one query and one block, a partial: `m = max(score)`, `p = exp(score - m)`, `l = sum(p)`,
`acc = sum(p * v)`. Partials are merged in block order and never split, so a token's output depends
on its context alone (Dao et al., FlashAttention; Rabe and Staats, 2021):

    M = max(m, m_block); keep = exp(m - M); add = exp(m_block - M)
    l = fma(l, keep, l_block * add); acc = fma(acc, keep, acc_block * add)

A block of KV of one layer and head: K transposed, f16[head_dim, 64]; V as it comes,
f16[64, head_dim]. Query heads that share a KV head, and neighbouring tokens, read a block together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.aliases import Address, Float32
from skerry_core.kernels.emitter import F16, F32, I32, LANES, Emitter, Value, vector
from skerry_core.kernels.linking import TARGET
from skerry_core.kernels.memory import array_at
from skerry_core.kernels.numba_math import building_block, exp_f32, fma, intrinsic, kernel
from skerry_core.kernels.targets import Target, Traits, traits_of

TILE_TOKENS = 8  # consecutive tokens of a sequence that one task attends for
_MAX_QUERIES = 6  # that one pass over a block serves from registers
_SLOT_VECTORS = BLOCK_SIZE // LANES
_FLOATS = vector(F32, LANES)


def _emit_weighted_sums(
    e: Emitter,
    traits: Traits,
    rows: Value,  # address: f16[steps, row_bytes / 2]
    row_bytes: Value,
    weights: list[Value],  # per query, address: f32[steps]
    steps: Value,
    out: list[Value],  # per query, address: f32[columns], written
    columns: Value,  # a multiple of 16
) -> None:
    """`out[c] = sum_s weights[s] * rows[s, c]` per query, by fma in the order of s.

    Both halves of attention: scores (rows are K's dimensions, columns are slots) and the sum of
    values (rows are slots, columns are V's dimensions).
    """
    b = e.builder

    def columns_pass(first: Value, width: int) -> None:
        def step(index: Value, sums: list[Value]) -> list[Value]:
            at = b.add(rows, b.add(b.mul(index, row_bytes), b.mul(first, e.i64(2))))
            vectors = [
                e.half_to_float(
                    e.load(e.offset(at, v, 2 * LANES), vector(F16, LANES), align=2),
                    native=traits.native_half,
                )
                for v in range(width)
            ]
            for q, weight in enumerate(weights):
                scalar = e.load_splat(e.offset(weight, index, 4), F32, LANES)
                for v in range(width):
                    sums[q * width + v] = e.fma(vectors[v], scalar, sums[q * width + v])
            return sums

        zeros = [e.constant(_FLOATS, 0.0)] * (len(weights) * width)
        sums = e.repeat(steps, zeros, step)
        for q, address in enumerate(out):
            for v in range(width):
                at = e.offset(e.offset(address, first, 4), v, 4 * LANES)
                e.store(sums[q * width + v], at, align=4)

    done = e.i64(0)
    for width in sorted({traits.attention_vectors, 1}, reverse=True):
        count = b.sdiv(b.sub(columns, done), e.i64(width * LANES))

        def one_pass(index: Value, *, start: Value = done, width: int = width) -> None:
            columns_pass(e.offset(start, index, width * LANES), width)

        e.repeat_maybe(count, one_pass)
        done = e.offset(done, count, width * LANES)


def _weighted_sums_kernel(num_queries: int) -> Callable[..., None]:
    @intrinsic
    def weighted_sums(
        typing_context: Any,
        target: Any,
        rows: Any,
        row_bytes: Any,
        weights: Any,
        weights_stride: Any,
        steps: Any,
        out: Any,
        out_stride: Any,
        columns: Any,
    ) -> Any:
        traits = traits_of(target)

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            e = Emitter(builder)
            _, rows, row_bytes, weights, weights_stride, steps, out, out_stride, columns = arguments
            queries = [e.i64(q) for q in range(num_queries)]
            _emit_weighted_sums(
                e,
                traits,
                rows,
                row_bytes,
                [builder.add(weights, builder.mul(q, weights_stride)) for q in queries],
                steps,
                [builder.add(out, builder.mul(q, out_stride)) for q in queries],
                columns,
            )
            return context.get_dummy_value()

        return types.void(target, *[types.int64] * 8), codegen

    compiled: Callable[..., None] = weighted_sums
    return compiled


_sums_1 = _weighted_sums_kernel(1)
_sums_2 = _weighted_sums_kernel(2)
_sums_3 = _weighted_sums_kernel(3)
_sums_4 = _weighted_sums_kernel(4)
_sums_6 = _weighted_sums_kernel(6)


@kernel
def _weighted_sums(
    target: Target,
    rows: Address,
    row_bytes: int,
    weights: Address,
    weights_stride: int,
    steps: int,
    out: Address,
    out_stride: int,
    columns: int,
    queries: int,
) -> None:
    """See `_emit_weighted_sums`, for any number of queries; strides in bytes."""
    done = 0
    while done < queries:
        left = queries - done
        w, o = weights + done * weights_stride, out + done * out_stride
        if left >= _MAX_QUERIES:
            _sums_6(target, rows, row_bytes, w, weights_stride, steps, o, out_stride, columns)
            done += 6
        elif left >= 4:
            _sums_4(target, rows, row_bytes, w, weights_stride, steps, o, out_stride, columns)
            done += 4
        elif left == 3:
            _sums_3(target, rows, row_bytes, w, weights_stride, steps, o, out_stride, columns)
            done += 3
        elif left == 2:
            _sums_2(target, rows, row_bytes, w, weights_stride, steps, o, out_stride, columns)
            done += 2
        else:
            _sums_1(target, rows, row_bytes, w, weights_stride, steps, o, out_stride, columns)
            done += 1


@intrinsic
def _softmax_block(typing_context: Any, scores: Any, hidden: Any, visible: Any) -> Any:
    """Turn f32[64] scores at an address into `p = exp(score - m)`; gives (m, sum of p).

    Slots before `hidden` and from `visible` on count as -inf; there is one between. The sum runs in
    16 lanes, folded in halves.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        e, b = Emitter(builder), builder
        scores, hidden, visible = arguments
        words = vector(I32, LANES)
        start = e.splat(b.trunc(hidden, I32), LANES)
        limit = e.splat(b.trunc(visible, I32), LANES)
        lowest = e.constant(_FLOATS, float(np.finfo(np.float32).min))
        masks, values = [], []
        for v in range(_SLOT_VECTORS):
            lanes = words([I32(v * LANES + lane) for lane in range(LANES)])
            is_before_end = b.icmp_signed("<", lanes, limit)
            masks.append(b.and_(is_before_end, b.icmp_signed(">=", lanes, start)))
            value = e.load(e.offset(scores, v, 4 * LANES), _FLOATS, align=4)
            values.append(b.select(masks[v], value, lowest))
        largest = values[0]
        for value in values[1:]:
            largest = e.maximum(largest, value)
        m = e.fold(largest, e.maximum)
        shift = e.splat(m, LANES)
        total = e.constant(_FLOATS, 0.0)
        for v, value in enumerate(values):
            p = e.exp(b.fsub(value, shift))
            p = b.select(masks[v], p, e.constant(_FLOATS, 0.0))
            total = b.fadd(total, p)
            e.store(p, e.offset(scores, v, 4 * LANES), align=4)
        pair = context.make_tuple(builder, signature.return_type, (m, e.fold(total, builder.fadd)))
        return pair

    pair_of_floats = types.UniTuple(types.float32, 2)
    return pair_of_floats(types.int64, types.int64, types.int64), codegen


@building_block
def merge_partial(
    state: Float32, state_peak: Float32, partial: Float32, peak: Float32, is_first: bool
) -> None:
    """Merge a block's partial into a query's state, in place.

    state, partial f32[head_dim]: acc; state_peak, peak f32[2]: (m, l)
    """
    count = state.shape[0]
    if is_first:
        for i in range(count):
            state[i] = partial[i]
        state_peak[0], state_peak[1] = peak[0], peak[1]
        return
    largest = max(state_peak[0], peak[0])
    keep, add = exp_f32(state_peak[0] - largest), exp_f32(peak[0] - largest)
    for i in range(count):
        state[i] = fma(state[i], keep, partial[i] * add)
    state_peak[0] = largest
    state_peak[1] = fma(state_peak[1], keep, peak[1] * add)


ATTEND_BLOCK = (TARGET, *[types.int64] * 10)  # argument types of `attend_block`


@kernel
def attend_block(
    target: Target,
    keys: Address,  # of the block's K: f16[head_dim, 64]
    values: Address,  # of the block's V: f16[64, head_dim]
    head_dim: int,
    queries: Address,  # f32[Q, head_dim], scaled
    num_queries: int,
    hidden: Address,  # i64[Q], the first slot that each query may see
    visible: Address,  # i64[Q], and the end of those; 0: there is none, and no partial
    scores: Address,  # f32[Q, 64], scratch
    partial: Address,  # f32[Q, head_dim], written: acc
    peaks: Address,  # f32[Q, 2], written: (m, l)
) -> None:
    """Partials of some queries over one block."""
    hidden_slots = array_at(hidden, (num_queries,), np.int64)
    visible_slots = array_at(visible, (num_queries,), np.int64)
    written_peaks = array_at(peaks, (num_queries, 2), np.float32)
    most = 0
    for q in range(num_queries):
        most = max(most, visible_slots[q])
    columns = (most + LANES - 1) // LANES * LANES
    dim_bytes, slot_bytes = 4 * head_dim, 4 * BLOCK_SIZE
    _weighted_sums(
        target, keys, 2 * BLOCK_SIZE, queries, dim_bytes, head_dim,
        scores, slot_bytes, columns, num_queries,
    )  # fmt: skip
    for q in range(num_queries):
        if visible_slots[q] > 0:
            m, total = _softmax_block(scores + q * slot_bytes, hidden_slots[q], visible_slots[q])
            written_peaks[q, 0], written_peaks[q, 1] = m, total
        else:
            array_at(scores + q * slot_bytes, (BLOCK_SIZE,), np.float32)[:] = np.float32(0.0)
    _weighted_sums(
        target, values, 2 * head_dim, scores, slot_bytes, most,
        partial, dim_bytes, head_dim, num_queries,
    )  # fmt: skip
