"""Packed weights times activations: `out[token, row] = sum_k weight[row, k] * x[token, k]`.

Quantised weights meet 8-bit activations (`rowwise.quantize`). Per row and token, in block order:

    acc = fma(float(sum of q * a), d * a_scale, acc)      the integer sum is exact
    acc = fma(m, a_scale * sum of a, acc)                 formats with a minimum or zero point

In K formats d is the exact product of the super-block's and an integer, and m likewise; Q6_K takes
the first line for each half of a block, which has a scale of its own.

Float weights meet float activations: `acc = fma(w, x, acc)` in column order. Tiles, one group of
rows times a few tokens in registers, change none of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from skerry_core.kernels.matmul.layout import PackedLayout, WeightFormat
from skerry_core.kernels.matmul.matmul_panels import (
    IN_PANELS,
    PANEL_TILES,
    UNPACK_ALIKE,
    emit_panels,
    emit_unpacked,
    out_rows,
)
from skerry_core.kernels.matmul.matmul_tiles import (
    RowGroup,
    float_tile,
    packed_weights,
    quantized_tile,
    streaming,
)
from skerry_core.kernels.simd.aliases import Address, Array
from skerry_core.kernels.simd.emitter import F32, Emitter, Value, vector
from skerry_core.kernels.simd.linking import TARGET
from skerry_core.kernels.simd.memory import array_at
from skerry_core.kernels.simd.numba_math import intrinsic, kernel
from skerry_core.kernels.simd.targets import Target, Traits, traits_of

MATRIX = np.dtype(  # where a packed matrix lies; see `layout.PackedLayout`
    [
        (name, np.int64)
        for name in (
            "address", "format", "num_groups", "num_steps", "scale_bytes", "group_bytes"
        )
    ]
)  # fmt: skip

MATMUL = (TARGET, *[types.int64] * 10)  # argument types of `matmul`

_IN_PANELS = tuple(map(int, IN_PANELS))  # as compiled code compares them
_CACHED_BYTES = 384 * 1024  # of activations, that one pass over the weights keeps in cache


def matrix_record(layout: PackedLayout, data: Address) -> Array:
    """Return `MATRIX[1]` of a packed matrix at an address."""
    record = np.zeros(1, MATRIX)
    record["address"] = data
    record["format"] = layout.format
    record["num_groups"] = layout.num_groups
    record["num_steps"] = layout.num_steps
    record["scale_bytes"] = layout.scale_bytes
    record["group_bytes"] = layout.group_bytes
    return record


def _emit_tokens(
    e: Emitter, traits: Traits, format_: WeightFormat, group: RowGroup, tokens: Value
) -> None:
    """Emit all tokens of a group: as many of the largest tile as fit, then the smaller ones."""
    b = e.builder
    done = e.i64(0)
    packed = packed_weights(e, traits, format_, group)
    weights = streaming(e, packed, format_, traits.rows, group)
    for size in traits.tile_tokens:
        count = b.sdiv(b.sub(tokens, done), e.i64(size))

        def tile(index: Value, *, first: Value = done, size: int = size) -> None:
            token = e.offset(first, index, size)
            if format_.is_quantized:
                zeros = [e.constant(vector(F32, traits.rows), 0.0)] * size
                [sums] = quantized_tile(
                    e, traits, format_, group, [weights], e.i64(0), group.steps, token, [zeros]
                )
            else:
                sums = float_tile(e, traits, format_, group, token, size)
            for total, row in zip(sums, out_rows(e, group, token, size), strict=True):
                e.store(total, row, align=4)

        e.repeat_maybe(count, tile)
        done = e.offset(done, count, size)


@intrinsic
def _multiply_group(
    typing_context: Any,
    target: Any,
    format_: Any,
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
    """Multiply one group of rows, of whatever format it is, by all tokens."""
    traits = traits_of(target)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, given, *group, tokens = arguments
        after = builder.append_basic_block("after")
        choice = builder.switch(given, after)
        for format_ in WeightFormat:
            if any(format_ in alike for alike in UNPACK_ALIKE):
                continue
            block = builder.append_basic_block(format_.name)
            choice.add_case(int(format_), block)
            builder.position_at_end(block)
            _emit_tokens(Emitter(builder), traits, format_, RowGroup(*group), tokens)
            builder.branch(after)
        for formats in UNPACK_ALIKE:
            block = builder.append_basic_block("alike")
            for format_ in formats:
                choice.add_case(int(format_), block)
            builder.position_at_end(block)
            emit_unpacked(Emitter(builder), traits, formats, RowGroup(*group), given, tokens)
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(target, *[types.int64] * 11), codegen


@intrinsic
def _multiply_panels(
    typing_context: Any,
    target: Any,
    format_: Any,
    scales: Any,
    quants: Any,
    group_bytes: Any,
    steps: Any,
    x: Any,
    x_stride: Any,
    headers: Any,
    headers_stride: Any,
    out: Any,
    out_stride: Any,
    tokens: Any,
) -> Any:
    """Multiply `panel_groups` groups of rows by tokens, a multiple of the last of
    `panel_tokens`."""
    traits = traits_of(target)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, given, scales, quants, size, *middle, out, out_stride, tokens = arguments
        e, groups = Emitter(builder), list[RowGroup]()
        for index in range(traits.target.panel_groups):
            further = builder.mul(size, e.i64(index))
            first = [builder.add(each, further) for each in (scales, quants)]
            last = [e.offset(out, 4 * traits.rows * index), out_stride]
            groups.append(RowGroup(*first, *middle, *last))
        after = builder.append_basic_block("after")
        choice = builder.switch(given, after)
        for format_ in IN_PANELS:
            block = builder.append_basic_block(format_.name)
            choice.add_case(int(format_), block)
            builder.position_at_end(block)
            emit_panels(Emitter(builder), traits, format_, groups, tokens)
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(target, *[types.int64] * 12), codegen


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
    together, size = target.panel_groups, target.panel_tokens[0]
    has_panels = last_group - first_group >= together and matrix.format in _IN_PANELS
    chunk = max(4 * size, _CACHED_BYTES // (x_stride + headers_stride) // size * size)
    for start in range(0, tokens, chunk):
        count = min(chunk, tokens - start)
        in_panels = 0
        if has_panels and count >= PANEL_TILES * size:
            in_panels = count // target.panel_tokens[-1] * target.panel_tokens[-1]
        for first in range(first_group, last_group if in_panels else first_group, together):
            # A group that is left over is computed beside those before it, which stay the same.
            group = min(first, last_group - together)
            scales = matrix.address + group * matrix.group_bytes
            _multiply_panels(
                target, matrix.format, scales, scales + matrix.scale_bytes, matrix.group_bytes,
                matrix.num_steps, x + start * x_stride, x_stride,
                headers + start * headers_stride, headers_stride,
                out + start * out_stride + group * target.rows * 4, out_stride, in_panels,
            )  # fmt: skip
        done, left = start + in_panels, count - in_panels
        for group in range(first_group, last_group if left else first_group):
            scales = matrix.address + group * matrix.group_bytes
            _multiply_group(
                target, matrix.format, scales, scales + matrix.scale_bytes, matrix.num_steps,
                x + done * x_stride, x_stride, headers + done * headers_stride, headers_stride,
                out + done * out_stride + group * target.rows * 4, out_stride, left,
            )  # fmt: skip
