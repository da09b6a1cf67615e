"""`out[c] = sum_s weights[s] * rows[s, c]` over rows of f16: both halves of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types

from skerry_core.kernels.simd.aliases import Address
from skerry_core.kernels.simd.emitter import F16, F32, LANES, Emitter, Value, vector
from skerry_core.kernels.simd.numba_math import intrinsic, kernel
from skerry_core.kernels.simd.targets import Target, Traits, traits_of

_PASS_QUERIES = 6  # that one pass over a block serves from registers
FLOATS = vector(F32, LANES)
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
    """Emit `out[c] = sum_s weights[s] * rows[s, c]` per query, by fma in the order of s.

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

        zeros = [e.constant(FLOATS, 0.0)] * (len(weights) * width)
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
    """Make the intrinsic for so many queries, over rows of f16 or of f32."""

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
                _half_loader(e, traits) if is_half else lambda at: e.load(at, FLOATS, align=4),
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
    """Widen `f16[steps, columns]` at one address to f32 at another; 16 | columns."""
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
def weighted_sums(
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
