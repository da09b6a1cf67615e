"""Tiles of the matmul kernels: a group of rows times a few tokens, in registers.

Their weights come packed, straight from memory, or from a panel: blocks of a group that were
unpacked once for many tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skerry_core.kernels.matmul.layout import BLOCK, BLOCKS_PER_SUPER, WeightFormat
from skerry_core.kernels.simd.emitter import F16, F32, I8, I32, Emitter, Value, vector
from skerry_core.kernels.simd.targets import Traits

# Header of 32 quantised activations: f32 scale, f32 scale * sum, i32 -32 * sum of the first 16,
# i32 -128 * sum.
HEADER_BYTES = 16
_SCALE, _SCALED_SUM, _MINUS_32_HALF_SUMS, _MINUS_128_SUMS = 0, 4, 8, 12

CACHE_LINE = 64  # bytes
_STREAMED = {2: 3 << 10, 1: 1 << 10}  # level of the cache: bytes that quants are fetched ahead


@dataclass(frozen=True, slots=True)
class RowGroup:
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


@dataclass(frozen=True, slots=True)
class WeightBlock:
    """A block of weights in registers."""

    # 8 of <4 rows x i8>: nibbles unsigned, bytes and looked up values signed; Q6_K signed, or 32
    # more where the target multiplies unsigned bytes.
    quads: list[Value]
    scale: Value  # <rows x f32>
    second: Value | None  # <rows x f32>: minimum; in Q6_K the scale of values 16 to 31


Weights = Callable[[Value], WeightBlock]  # the block of an index


def block_bytes(format_: WeightFormat, rows: int) -> int:
    """Return the bytes of one packed block of a group, its part of the scales included."""
    return rows * (format_.row_quant_bytes + _row_scale_share(format_))


def _row_scale_share(format_: WeightFormat) -> int:
    return -(-format_.row_scale_bytes // format_.blocks_per_scales)


def fetching(e: Emitter, weights: Weights, start: Value, step: int) -> Weights:
    """Return the same blocks, which with block i prefetch `step` bytes from `start + i * step` on.

    So the next weights come while these are multiplied many times.
    """

    def load(index: Value) -> WeightBlock:
        at = e.offset(start, index, step)
        for line in range(0, step, CACHE_LINE):
            e.prefetch(e.offset(at, line))
        return weights(index)

    return load


def streaming(
    e: Emitter, weights: Weights, format_: WeightFormat, rows: int, group: RowGroup
) -> Weights:
    """Return the same blocks of a group, which fetch those to come: for few tokens, which wait for
    nothing but memory.

    Quants are fetched to the second level of the cache and, nearer, to the first; farther ahead,
    the hardware would not go on by itself to the end of a page. Behind the group's own are the
    next group's scales, a share of which is fetched with each block, and then its quants.
    """
    b, size = e.builder, format_.row_quant_bytes * rows
    end, scales = e.offset(group.quants, group.steps, size), _row_scale_share(format_) * rows
    scale_bytes = b.sub(group.quants, group.scales)

    def load(index: Value) -> WeightBlock:
        for level, distance in _STREAMED.items():
            block = e.offset(index, max(1, distance // size))
            is_beyond = b.icmp_signed(">=", block, group.steps)
            jump = b.select(is_beyond, scale_bytes, e.i64(0))
            at = b.add(e.offset(group.quants, block, size), jump)
            for line in range(0, size, CACHE_LINE):
                e.prefetch(e.offset(at, line), level)
        at = e.offset(end, index, scales)
        for line in range(0, scales, CACHE_LINE):
            e.prefetch(e.offset(at, line))
        return weights(index)

    return load


def packed_weights(e: Emitter, traits: Traits, format_: WeightFormat, group: RowGroup) -> Weights:
    """Return blocks that are unpacked whenever they are loaded."""
    b, quad_bytes = e.builder, 4 * traits.rows
    quad = vector(I8, quad_bytes)

    def load(index: Value) -> WeightBlock:
        at = e.offset(group.quants, index, format_.row_quant_bytes * traits.rows)
        if format_.has_nibbles:
            pairs = [e.load(e.offset(at, j, quad_bytes), quad) for j in range(4)]
            quads = [b.and_(pair, e.constant(quad, 15)) for pair in pairs]
            quads += [b.lshr(pair, e.constant(quad, 4)) for pair in pairs]
            if format_.codebook is not None:
                quads = [traits.look_up(e, each, format_.codebook) for each in quads]
        elif format_ is WeightFormat.Q6_K:
            quads = _six_bit_quads(e, [e.load(e.offset(at, j, quad_bytes), quad) for j in range(6)])
            if not traits.signed_as_unsigned:
                quads = [b.sub(each, e.constant(quad, 32)) for each in quads]
        else:
            quads = [e.load(e.offset(at, j, quad_bytes), quad) for j in range(8)]
        return WeightBlock(quads, *_load_scales(e, traits, format_, group, index))

    return load


def _six_bit_quads(e: Emitter, packed: list[Value]) -> list[Value]:
    """Emit 8 quads of 6 bits out of 4 of their lower bits and 2 of their upper ones."""
    b, kind = e.builder, packed[0].type
    low = [b.and_(pair, e.constant(kind, 15)) for pair in packed[:4]]
    low += [b.lshr(pair, e.constant(kind, 4)) for pair in packed[:4]]
    quads = []
    for j, nibble in enumerate(low):
        upper, shift = packed[4 + j // 4], 4 - 2 * (j % 4)
        moved = b.shl if shift > 0 else b.lshr
        upper = moved(upper, e.constant(kind, abs(shift))) if shift else upper
        quads.append(b.or_(nibble, b.and_(upper, e.constant(kind, 0x30))))
    return quads


def _load_scales(
    e: Emitter, traits: Traits, format_: WeightFormat, group: RowGroup, block: Value
) -> tuple[Value, Value | None]:
    """Load a block's two factors <rows x f32>: scale and minimum, or None; in Q6_K two scales."""
    b, rows = e.builder, traits.rows
    unit_bytes = format_.row_scale_bytes * rows

    def half(at: Value, which: int) -> Value:
        loaded = e.load(e.offset(at, which, 2 * rows), vector(F16, rows))
        return e.half_to_float(loaded, native=traits.native_half)

    if format_ is WeightFormat.MXFP4:
        return _half_powers(e, e.load(e.offset(group.scales, block, rows), vector(I8, rows))), None
    if format_ is WeightFormat.UINT4:  # d * (quant - zero) is d * quant + (d * -zero), both exact
        at = e.offset(group.scales, block, unit_bytes)
        zeros = b.sitofp(e.load(e.offset(at, 2 * rows), vector(I8, rows)), vector(F32, rows))
        return half(at, 0), b.fmul(half(at, 0), b.fneg(zeros))
    if not format_.has_super_blocks:
        at = e.offset(group.scales, block, unit_bytes)
        has_minimum = format_ in (WeightFormat.Q4_1, WeightFormat.Q5_1)
        return half(at, 0), half(at, 1) if has_minimum else None
    per_super = e.i64(BLOCKS_PER_SUPER)
    at = e.offset(group.scales, b.sdiv(block, per_super), unit_bytes)
    num_floats = 2 if format_ in (WeightFormat.Q4_K, WeightFormat.Q5_K) else 1
    num_integers = 1 if format_ is WeightFormat.IQ4_XS else 2
    start = e.offset(at, num_floats, 2 * rows)
    integers = e.offset(start, b.srem(block, per_super), num_integers * rows)

    def product(which: int, float_: Value) -> Value:
        loaded = e.load(e.offset(integers, which, rows), vector(I8, rows))
        return b.fmul(float_, b.sitofp(loaded, vector(F32, rows)))

    d = half(at, 0)
    if num_integers == 1:
        return product(0, d), None
    return product(0, d), product(1, d if num_floats == 1 else half(at, 1))


def _half_powers(e: Emitter, exponents: Value) -> Value:
    """Emit `codebooks.half_powers` of each lane of <rows x i8>."""
    b, words = e.builder, vector(I32, exponents.type.count)
    wide = b.zext(exponents, words)
    subnormal = b.shl(e.constant(words, 0x00200000), wide)
    normal = b.shl(b.sub(wide, e.constant(words, 1)), e.constant(words, 23))
    is_subnormal = b.icmp_unsigned("<", wide, e.constant(words, 2))
    return b.bitcast(b.select(is_subnormal, subnormal, normal), vector(F32, words.count))


def quantized_tile(
    e: Emitter,
    traits: Traits,
    format_: WeightFormat,
    group: RowGroup,  # the first of them
    weights: Sequence[Weights],  # of each group of rows
    first: Value,  # block of the activations that meets block 0 of the weights
    count: Value,  # blocks, at least 1
    token: Value,  # the tile's first
    sums: Sequence[list[Value]],  # of each group <rows x f32> of each token: what is added to
) -> list[list[Value]]:
    """Emit sums of groups of rows for consecutive tokens over some blocks: <rows x f32> each."""
    b, rows, tokens, groups = e.builder, traits.rows, range(len(sums[0])), range(len(sums))
    floats, words = vector(F32, rows), vector(I32, rows)
    numbers = [b.add(token, e.i64(t)) for t in tokens]
    start_x = e.offset(group.x, first, BLOCK)
    start_headers = e.offset(group.headers, first, HEADER_BYTES)
    x = [b.add(start_x, b.mul(number, group.x_stride)) for number in numbers]
    headers = [b.add(start_headers, b.mul(number, group.headers_stride)) for number in numbers]
    signed = not format_.has_nibbles or format_.codebook is not None
    has_halves = format_ is WeightFormat.Q6_K
    is_raised = signed and traits.signed_as_unsigned  # each weight is 128 more; in Q6_K 32

    def add_block(index: Value, carried: list[Value]) -> list[Value]:
        sums = [carried[len(tokens) * g : len(tokens) * (g + 1)] for g in groups]
        blocks = [of_group(index) for of_group in weights]
        header = [e.offset(h, index, HEADER_BYTES) for h in headers]
        a_scales = [e.load_splat(e.offset(h, _SCALE), F32, rows) for h in header]

        def activations(t: int, quad: int) -> Value:
            at = e.offset(e.offset(x[t], index, BLOCK), quad, 4)
            return b.bitcast(e.load_splat(at, I32, rows), vector(I8, 4 * rows))

        def add(products: list[list[Value]], scales: list[Value]) -> None:
            for t in tokens:
                for g in groups:
                    factor = b.fmul(scales[g], a_scales[t])
                    sums[g][t] = e.fma(b.sitofp(products[g][t], floats), factor, sums[g][t])

        start = [e.constant(words, 0)] * len(tokens)
        if is_raised or format_ is WeightFormat.Q4_0:  # which is 8 more
            start = [e.load_splat(e.offset(h, _MINUS_128_SUMS), I32, rows) for h in header]
        if format_ is WeightFormat.Q4_0:
            start = [b.ashr(total, e.constant(words, 4)) for total in start]
        if has_halves:
            low = high = start
            if is_raised:
                low = [e.load_splat(e.offset(h, _MINUS_32_HALF_SUMS), I32, rows) for h in header]
                both = [b.ashr(total, e.constant(words, 2)) for total in start]
                high = [b.sub(total, half) for total, half in zip(both, low, strict=True)]
            first_half, second_half = (
                [each.scale for each in blocks],
                [each.second for each in blocks],
            )
            for first, sums_of_half, scales in ((0, low, first_half), (4, high, second_half)):

                def shifted(t: int, quad: int, *, first: int = first) -> Value:
                    return activations(t, first + quad)

                quads = [block.quads[first : first + 4] for block in blocks]
                starts = [sums_of_half] * len(groups)
                add(traits.dot_block(e, quads, shifted, starts, signed=not is_raised), scales)
            return [total for each in sums for total in each]
        quads, starts = [block.quads for block in blocks], [start] * len(groups)
        products = traits.dot_block(e, quads, activations, starts, signed=signed)
        add(products, [block.scale for block in blocks])
        if blocks[0].second is not None:
            for t in tokens:
                scaled_sum = e.load_splat(e.offset(header[t], _SCALED_SUM), F32, rows)
                for g in groups:
                    sums[g][t] = e.fma(blocks[g].second, scaled_sum, sums[g][t])
        return [total for each in sums for total in each]

    totals = e.repeat(count, [total for each in sums for total in each], add_block)
    return [totals[len(tokens) * g : len(tokens) * (g + 1)] for g in groups]


def float_tile(
    e: Emitter,
    traits: Traits,
    format_: WeightFormat,
    group: RowGroup,
    token: Value,
    num_tokens: int,
) -> list[Value]:
    """Do as `quantized_tile` over all columns, for weights and activations in floating point."""
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
