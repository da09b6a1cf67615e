"""Packed weights times activations: `out[token, row] = sum_k weight[row, k] * x[token, k]`.

Quantised weights meet 8-bit activations (`rowwise.quantize`). Per row and token, in block order:

    acc = fma(float(sum of q * a), d * a_scale, acc)      the integer sum is exact
    acc = fma(m, a_scale * sum of a, acc)                 Q4_1, Q4_K and Q5_K

In K formats d is the exact product of the super-block's and an integer, and m likewise; Q6_K takes
the first line for each half of a block, which has a scale of its own.

Float weights meet float activations: `acc = fma(w, x, acc)` in column order. Tiles, one group of
rows times a few tokens in registers, change none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types

from skerry_core.kernels.aliases import Address
from skerry_core.kernels.emitter import F16, F32, I8, I32, Emitter, Value, vector
from skerry_core.kernels.layout import BLOCK, BLOCKS_PER_SUPER, WeightFormat
from skerry_core.kernels.linking import TARGET
from skerry_core.kernels.memory import array_at
from skerry_core.kernels.numba_math import intrinsic, kernel
from skerry_core.kernels.targets import Activations, Target, Traits, traits_of

# Header of 32 quantised activations: f32 scale, f32 scale * sum, i32 -8 * sum, i32 -128 * sum.
HEADER_BYTES = 16
_SCALE, _SCALED_SUM, _MINUS_8_SUMS, _MINUS_128_SUMS = 0, 4, 8, 12

MATRIX = np.dtype(  # where a packed matrix lies; see `layout.PackedLayout`
    [
        (name, np.int64)
        for name in (
            "address", "format", "num_groups", "num_steps", "scale_bytes", "group_bytes"
        )
    ]
)  # fmt: skip

MATMUL = (TARGET, *[types.int64] * 10)  # argument types of `matmul`

_CACHED_BYTES = 384 * 1024  # of activations, that one pass over the weights keeps in cache


@dataclass(frozen=True, slots=True)
class _Group:
    """What a tile needs: addresses, and strides in bytes; all LLVM values of 64 bits."""

    scales: Value
    quants: Value
    steps: Value  # blocks, or columns of float weights
    x: Value  # first token: i8[columns], or f32[columns] for float weights
    x_stride: Value
    headers: Value  # first token: HEADER_BYTES per block
    headers_stride: Value
    out: Value  # first token: f32[rows] of this group
    out_stride: Value


def _load_quads(e: Emitter, traits: Traits, format_: WeightFormat, block: Value) -> list[Value]:
    """The 8 quads of a block as <4 rows x i8>: nibbles unsigned, bytes signed."""
    b, quad_bytes = e.builder, 4 * traits.rows
    quad = vector(I8, quad_bytes)
    if not format_.has_nibbles:
        return [e.load(e.offset(block, j, quad_bytes), quad) for j in range(8)]
    pairs = [e.load(e.offset(block, j, quad_bytes), quad) for j in range(4)]
    low = [b.and_(pair, e.constant(quad, 15)) for pair in pairs]
    return low + [b.lshr(pair, e.constant(quad, 4)) for pair in pairs]


def _quantized_tile(
    e: Emitter, traits: Traits, format_: WeightFormat, group: _Group, token: Value, num_tokens: int
) -> list[Value]:
    """Sums of one group of rows for consecutive tokens: <rows x f32> each."""
    b, rows, tokens = e.builder, traits.rows, range(num_tokens)
    floats, words = vector(F32, rows), vector(I32, rows)
    x = [e.builder.add(group.x, b.mul(b.add(token, e.i64(t)), group.x_stride)) for t in tokens]
    headers = [
        b.add(group.headers, b.mul(b.add(token, e.i64(t)), group.headers_stride)) for t in tokens
    ]
    signed = not format_.has_nibbles
    start_at = None  # the header word that integer sums start from
    if format_ is WeightFormat.Q4_0:
        start_at = _MINUS_8_SUMS
    elif signed and traits.signed_as_unsigned:
        start_at = _MINUS_128_SUMS
    has_halves = format_ is WeightFormat.Q6_K

    def block(index: Value, sums: list[Value]) -> list[Value]:
        quads = _load_quads(
            e, traits, format_, e.offset(group.quants, index, format_.row_quant_bytes * rows)
        )
        header = [e.offset(h, index, HEADER_BYTES) for h in headers]
        a_scales = [e.load_splat(e.offset(h, _SCALE), F32, rows) for h in header]

        def activations(t: int, quad: int) -> Value:
            at = e.offset(e.offset(x[t], index, BLOCK), quad, 4)
            return b.bitcast(e.load_splat(at, I32, rows), vector(I8, 4 * rows))

        def add(products: list[Value], scale: Value) -> None:
            for t in tokens:
                factor = b.fmul(scale, a_scales[t])
                sums[t] = e.fma(b.sitofp(products[t], floats), factor, sums[t])

        if start_at is None:
            start = [e.constant(words, 0)] * num_tokens
        else:
            start = [e.load_splat(e.offset(h, start_at), I32, rows) for h in header]
        first, second = _load_scales(e, traits, format_, group, index)
        if has_halves:
            low, high = _dot_halves(e, traits, quads, activations, num_tokens)
            add(low, first)
            add(high, second)
            return sums
        add(traits.dot_block(e, quads, activations, start, signed=signed), first)
        if second is not None:
            for t in tokens:
                scaled_sum = e.load_splat(e.offset(header[t], _SCALED_SUM), F32, rows)
                sums[t] = e.fma(second, scaled_sum, sums[t])
        return sums

    return e.repeat(group.steps, [e.constant(floats, 0.0)] * num_tokens, block)


def _load_scales(
    e: Emitter, traits: Traits, format_: WeightFormat, group: _Group, block: Value
) -> tuple[Value, Value]:
    """A block's two factors <rows x f32>: scale and minimum, or None; in Q6_K two scales."""
    b, rows = e.builder, traits.rows
    unit_bytes = format_.row_scale_bytes * rows

    def half(at: Value, which: int) -> Value:
        loaded = e.load(e.offset(at, which, 2 * rows), vector(F16, rows))
        return e.half_to_float(loaded, native=traits.native_half)

    if not format_.has_super_blocks:
        at = e.offset(group.scales, block, unit_bytes)
        return half(at, 0), half(at, 1) if format_ is WeightFormat.Q4_1 else None
    per_super = e.i64(BLOCKS_PER_SUPER)
    at = e.offset(group.scales, b.sdiv(block, per_super), unit_bytes)
    num_floats = 1 if format_ is WeightFormat.Q6_K else 2
    integers = e.offset(e.offset(at, num_floats, 2 * rows), b.srem(block, per_super), 2 * rows)

    def product(which: int, float_: Value) -> Value:
        loaded = e.load(e.offset(integers, which, rows), vector(I8, rows))
        return b.fmul(float_, b.sitofp(loaded, vector(F32, rows)))

    d = half(at, 0)
    return product(0, d), product(1, d if num_floats == 1 else half(at, 1))


def _dot_halves(
    e: Emitter, traits: Traits, quads: list[Value], activations: Activations, num_tokens: int
) -> tuple[list[Value], list[Value]]:
    """Products of values 0 to 15 of a block of signed bytes, and of 16 to 31, per token."""
    b, half = e.builder, len(quads) // 2
    zeros = [e.constant(vector(I32, traits.rows), 0)] * num_tokens

    def dot(first: int) -> list[Value]:
        def shifted(t: int, quad: int) -> Value:
            return activations(t, first + quad)

        start = zeros
        if traits.signed_as_unsigned:
            offsets = [e.constant(quads[0].type, -128)] * half  # as unsigned bytes: 128
            too_much = traits.dot_block(e, offsets, shifted, zeros, signed=False)
            start = [b.neg(total) for total in too_much]
        return traits.dot_block(e, quads[first : first + half], shifted, start, signed=True)

    return dot(0), dot(half)


def _float_tile(
    e: Emitter, traits: Traits, format_: WeightFormat, group: _Group, token: Value, num_tokens: int
) -> list[Value]:
    """As `_quantized_tile`, for weights and activations in floating point."""
    b, rows, tokens = e.builder, traits.rows, range(num_tokens)
    x = [e.builder.add(group.x, b.mul(b.add(token, e.i64(t)), group.x_stride)) for t in tokens]

    def column(index: Value, sums: list[Value]) -> list[Value]:
        at = e.offset(group.quants, index, format_.row_quant_bytes * rows)
        if format_ is WeightFormat.F16:
            half = e.load(at, vector(F16, rows))
            weight = e.half_to_float(half, native=traits.native_half)
        else:
            weight = e.load(at, vector(F32, rows))
        return [
            e.fma(weight, e.load_splat(e.offset(x[t], index, 4), F32, rows), sums[t])
            for t in tokens
        ]

    return e.repeat(group.steps, [e.constant(vector(F32, rows), 0.0)] * num_tokens, column)


def _emit_tokens(
    e: Emitter, traits: Traits, format_: WeightFormat, group: _Group, tokens: Value
) -> None:
    """All tokens of a group: as many of the largest tile as fit, then the smaller ones."""
    b = e.builder
    make_tile = _quantized_tile if format_.is_quantized else _float_tile
    done = e.i64(0)
    for size in traits.tile_tokens:
        count = b.sdiv(b.sub(tokens, done), e.i64(size))

        def tile(index: Value, *, first: Value = done, size: int = size) -> None:
            token = e.offset(first, index, size)
            sums = make_tile(e, traits, format_, group, token, size)
            for t, total in enumerate(sums):
                row = b.mul(b.add(token, e.i64(t)), group.out_stride)
                e.store(total, b.add(group.out, row), align=4)

        e.repeat_maybe(count, tile)
        done = e.offset(done, count, size)


def _group_kernel(format_: WeightFormat) -> Callable[..., None]:
    """The intrinsic that multiplies one group of rows by all tokens."""

    @intrinsic
    def multiply_group(
        typing_context: Any,
        target: Any,
        scales: Any,
        quants: Any,
        steps: Any,
        x: Any,
        x_stride: Any,
        headers: Any,
        headers_stride: Any,
        out: Any,
        out_stride: Any,
        tokens: Any,
    ) -> Any:
        traits = traits_of(target)

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            group = _Group(*arguments[1:-1])
            _emit_tokens(Emitter(builder), traits, format_, group, arguments[-1])
            return context.get_dummy_value()

        return types.void(target, *[types.int64] * 10), codegen

    compiled: Callable[..., None] = multiply_group
    return compiled


_F32, _F16 = int(WeightFormat.F32), int(WeightFormat.F16)
_Q4_0, _Q4_1, _Q8_0 = int(WeightFormat.Q4_0), int(WeightFormat.Q4_1), int(WeightFormat.Q8_0)
_Q4_K, _Q5_K, _Q6_K = int(WeightFormat.Q4_K), int(WeightFormat.Q5_K), int(WeightFormat.Q6_K)
_group_f32 = _group_kernel(WeightFormat.F32)
_group_f16 = _group_kernel(WeightFormat.F16)
_group_q4_0 = _group_kernel(WeightFormat.Q4_0)
_group_q4_1 = _group_kernel(WeightFormat.Q4_1)
_group_q8_0 = _group_kernel(WeightFormat.Q8_0)
_group_q4_k = _group_kernel(WeightFormat.Q4_K)
_group_q5_k = _group_kernel(WeightFormat.Q5_K)
_group_q6_k = _group_kernel(WeightFormat.Q6_K)


@kernel
def matmul(
    target: Target,  # decides the rows per group
    matrix_at: Address,  # of a MATRIX
    first_group: int,  # groups [first_group, last_group) are computed
    last_group: int,
    x: Address,  # quantised i8[tokens, columns], or f32 when the matrix is not quantised
    x_stride: int,  # bytes
    headers: Address,  # [tokens, blocks, HEADER_BYTES]; unused when the matrix is not quantised
    headers_stride: int,  # bytes
    out: Address,  # f32[tokens, out_stride / 4], row 0 of the matrix at column 0; written
    out_stride: int,  # bytes
    tokens: int,
) -> None:
    """Multiply some groups of rows of a packed matrix by every token."""
    matrix = array_at(matrix_at, (1,), MATRIX)[0]
    chunk = max(8, _CACHED_BYTES // (x_stride + headers_stride) // 8 * 8)
    for start in range(0, tokens, chunk):
        count = min(chunk, tokens - start)
        xs, hs = x + start * x_stride, headers + start * headers_stride
        for group in range(first_group, last_group):
            scales = matrix.address + group * matrix.group_bytes
            quants = scales + matrix.scale_bytes
            to = out + start * out_stride + group * target.rows * 4
            steps = matrix.num_steps
            if matrix.format == _Q4_1:
                _group_q4_1(
                    target, scales, quants, steps, xs, x_stride, hs, headers_stride,
                    to, out_stride, count,
                )  # fmt: skip
            elif matrix.format == _Q4_0:
                _group_q4_0(
                    target, scales, quants, steps, xs, x_stride, hs, headers_stride,
                    to, out_stride, count,
                )  # fmt: skip
            elif matrix.format == _Q8_0:
                _group_q8_0(
                    target, scales, quants, steps, xs, x_stride, hs, headers_stride,
                    to, out_stride, count,
                )  # fmt: skip
            elif matrix.format == _Q4_K:
                _group_q4_k(
                    target, scales, quants, steps, xs, x_stride, hs, headers_stride,
                    to, out_stride, count,
                )  # fmt: skip
            elif matrix.format == _Q5_K:
                _group_q5_k(
                    target, scales, quants, steps, xs, x_stride, hs, headers_stride,
                    to, out_stride, count,
                )  # fmt: skip
            elif matrix.format == _Q6_K:
                _group_q6_k(
                    target, scales, quants, steps, xs, x_stride, hs, headers_stride,
                    to, out_stride, count,
                )  # fmt: skip
            elif matrix.format == _F16:
                _group_f16(
                    target, scales, quants, steps, xs, x_stride, hs, headers_stride,
                    to, out_stride, count,
                )  # fmt: skip
            elif matrix.format == _F32:
                _group_f32(
                    target, scales, quants, steps, xs, x_stride, hs, headers_stride,
                    to, out_stride, count,
                )  # fmt: skip
