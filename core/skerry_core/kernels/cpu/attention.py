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

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.simd.aliases import Address, Float32, Int64
from skerry_core.kernels.simd.emitter import F16, F32, I32, LANES, Emitter, Value, vector
from skerry_core.kernels.simd.linking import TARGET
from skerry_core.kernels.simd.memory import array_at
from skerry_core.kernels.simd.numba_math import building_block, exp_f32, fma, intrinsic, kernel
from skerry_core.kernels.simd.targets import Target, Traits, traits_of

_PASS_QUERIES = 6  # that one pass over a block serves from registers
_SLOT_VECTORS = BLOCK_SIZE // LANES
_FLOATS = vector(F32, LANES)
_CACHE_LINE = 64  # bytes


def _emit_weighted_sums(
    e: Emitter,
    load: Callable[[Value], Value],  # of LANES values at an address
    value_bytes: int,
    widths: list[int],  # vectors of columns that a pass may keep in registers, largest first
    rows: Value,  # address: [steps, row_bytes / value_bytes]
    row_bytes: Value,
    ahead: Value,  # address of rows that are read next: fetched meanwhile
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
            offset = b.add(b.mul(index, row_bytes), b.mul(first, e.i64(value_bytes)))
            for line in range(0, width * LANES * value_bytes, _CACHE_LINE):
                e.prefetch(e.offset(b.add(ahead, offset), line))
            at = b.add(rows, offset)
            vectors = [load(e.offset(at, v, value_bytes * LANES)) for v in range(width)]
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
    for width in widths:
        count = b.sdiv(b.sub(columns, done), e.i64(width * LANES))

        def one_pass(index: Value, *, start: Value = done, width: int = width) -> None:
            columns_pass(e.offset(start, index, width * LANES), width)

        e.repeat_maybe(count, one_pass)
        done = e.offset(done, count, width * LANES)


def _half_loader(e: Emitter, traits: Traits) -> Callable[[Value], Value]:
    def load(address: Value) -> Value:
        half = e.load(address, vector(F16, LANES), align=2)
        return e.half_to_float(half, native=traits.native_half)

    return load


def _weighted_sums_kernel(num_queries: int, *, is_half: bool) -> Callable[..., None]:
    """The intrinsic for so many queries, over rows of f16 or of f32."""

    @intrinsic
    def weighted_sums(
        typing_context: Any,
        target: Any,
        rows: Any,
        row_bytes: Any,
        ahead: Any,
        weights: Any,
        weights_stride: Any,
        steps: Any,
        out: Any,
        out_stride: Any,
        columns: Any,
    ) -> Any:
        traits = traits_of(target)

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            e, b = Emitter(builder), builder
            _, rows, row_bytes, ahead, weights, weights_stride, steps, *rest = arguments
            out, out_stride, columns = rest
            queries = [e.i64(q) for q in range(num_queries)]
            _emit_weighted_sums(
                e,
                _half_loader(e, traits) if is_half else lambda at: e.load(at, _FLOATS, align=4),
                2 if is_half else 4,
                sorted({traits.attention_vectors, 1}, reverse=True),
                rows,
                row_bytes,
                ahead,
                [b.add(weights, b.mul(q, weights_stride)) for q in queries],
                steps,
                [b.add(out, b.mul(q, out_stride)) for q in queries],
                columns,
            )
            return context.get_dummy_value()

        return types.void(target, *[types.int64] * 9), codegen

    compiled: Callable[..., None] = weighted_sums
    return compiled


_sums_1 = _weighted_sums_kernel(1, is_half=True)
_sums_2 = _weighted_sums_kernel(2, is_half=True)
_sums_3 = _weighted_sums_kernel(3, is_half=True)
_sums_4 = _weighted_sums_kernel(4, is_half=True)
_sums_6 = _weighted_sums_kernel(6, is_half=True)
_wide_sums_6 = _weighted_sums_kernel(6, is_half=False)


@intrinsic
def _widen(typing_context: Any, target: Any, rows: Any, row_bytes: Any, ahead: Any, steps: Any,
           columns: Any, out: Any, out_row_bytes: Any) -> Any:  # fmt: skip
    """`f16[steps, columns]` at one address to f32 at another; 16 | columns."""
    traits = traits_of(target)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        e, b = Emitter(builder), builder
        _, rows, row_bytes, ahead, steps, columns, out, out_row_bytes = arguments
        load = _half_loader(e, traits)

        def row(index: Value) -> None:
            source, to = b.mul(index, row_bytes), b.mul(index, out_row_bytes)

            def lanes(v: Value) -> None:
                at = e.offset(source, v, 2 * LANES)
                e.prefetch(b.add(ahead, at))
                e.store(load(b.add(rows, at)), b.add(out, e.offset(to, v, 4 * LANES)), align=4)

            e.repeat_maybe(b.sdiv(columns, e.i64(LANES)), lanes)

        e.repeat_maybe(steps, row)
        return context.get_dummy_value()

    return types.void(target, *[types.int64] * 7), codegen


@kernel
def _weighted_sums(
    target: Target,
    rows: Address,
    row_bytes: int,
    ahead: Address,
    weights: Address,
    weights_stride: int,
    steps: int,
    out: Address,
    out_stride: int,
    columns: int,
    queries: int,
    widened: Address,  # f32[steps, row_bytes / 2], scratch
) -> None:
    """See `_emit_weighted_sums`, for any number of queries over rows of f16; strides in bytes.

    More queries than a pass serves: the rows are widened once for all.
    """
    done = 0
    if queries > _PASS_QUERIES:
        _widen(target, rows, row_bytes, ahead, steps, columns, widened, 2 * row_bytes)
        ahead = rows
        while queries - done >= _PASS_QUERIES:
            w, o = weights + done * weights_stride, out + done * out_stride
            _wide_sums_6(
                target, widened, 2 * row_bytes, widened, w, weights_stride, steps, o, out_stride,
                columns,
            )  # fmt: skip
            done += _PASS_QUERIES
    while done < queries:
        left = queries - done
        w, o = weights + done * weights_stride, out + done * out_stride
        if left == 6:
            _sums_6(
                target, rows, row_bytes, ahead, w, weights_stride, steps, o, out_stride, columns
            )
            done += 6
        elif left >= 4:
            _sums_4(
                target, rows, row_bytes, ahead, w, weights_stride, steps, o, out_stride, columns
            )
            done += 4
        elif left == 3:
            _sums_3(
                target, rows, row_bytes, ahead, w, weights_stride, steps, o, out_stride, columns
            )
            done += 3
        elif left == 2:
            _sums_2(
                target, rows, row_bytes, ahead, w, weights_stride, steps, o, out_stride, columns
            )
            done += 2
        else:
            _sums_1(
                target, rows, row_bytes, ahead, w, weights_stride, steps, o, out_stride, columns
            )
            done += 1


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
        lowest = e.constant(_FLOATS, float(np.finfo(np.float32).min))
        masks, values = [], []
        for v in range(_SLOT_VECTORS):
            lanes = words([I32(v * LANES + lane) for lane in range(LANES)])
            inside = b.icmp_signed(">=", lanes, start), b.icmp_signed("<", lanes, end)
            masks.append(b.and_(*inside))
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


ATTEND_BLOCK = (TARGET, *[types.int64] * 13)  # argument types of `attend_block`


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
) -> None:
    """Partials of some queries over one block."""
    slots = array_at(seen, (tokens, 2), np.int64)
    num_queries = tokens * group
    written_peaks = array_at(peaks, (num_queries, 2), np.float32)
    most = 0
    for i in range(tokens):
        most = max(most, slots[i, 1])
    columns = (most + LANES - 1) // LANES * LANES
    dim_bytes, slot_bytes = 4 * head_dim, 4 * BLOCK_SIZE
    _weighted_sums(
        target, keys, 2 * BLOCK_SIZE, keys_ahead, queries, dim_bytes, head_dim,
        scores, slot_bytes, columns, num_queries, widened,
    )  # fmt: skip
    for i in range(tokens):
        for q in range(i * group, (i + 1) * group):
            if slots[i, 0] < slots[i, 1]:
                m, total = _softmax_block(scores + q * slot_bytes, slots[i, 0], slots[i, 1])
                written_peaks[q, 0], written_peaks[q, 1] = m, total
            else:
                array_at(scores + q * slot_bytes, (BLOCK_SIZE,), np.float32)[:] = np.float32(0.0)
    _weighted_sums(
        target, values, 2 * head_dim, values_ahead, scores, slot_bytes, most,
        partial, dim_bytes, head_dim, num_queries, widened,
    )  # fmt: skip
