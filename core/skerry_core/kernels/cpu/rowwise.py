"""Kernels that touch one token's row at a time: norm, quantisation, rotary embedding, SwiGLU."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from skerry_core.kernels.activations import (
    ACTIVATIONS,
    CLAMP,
    CLAMPED_SLOPE,
    GELU_CUBIC,
    GELU_SLOPE,
)
from skerry_core.kernels.cpu.layout import BLOCK, BLOCKS_PER_SUPER, WeightFormat
from skerry_core.kernels.cpu.matmul import MATRIX
from skerry_core.kernels.cpu.matmul_tiles import HEADER_BYTES
from skerry_core.kernels.simd.aliases import Address, Float32
from skerry_core.kernels.simd.emitter import F16, F32, I8, I32, LANES, Emitter, vector
from skerry_core.kernels.simd.memory import address_of, array_at
from skerry_core.kernels.simd.numba_math import (
    building_block,
    exp_f32,
    fma,
    intrinsic,
    kernel,
    tanh_f32,
)
from skerry_core.kernels.simd.targets import Target, traits_of

_F32, _F16 = int(WeightFormat.F32), int(WeightFormat.F16)
_Q4_0, _Q4_1, _Q8_0 = int(WeightFormat.Q4_0), int(WeightFormat.Q4_1), int(WeightFormat.Q8_0)
_Q4_K, _Q5_K, _Q6_K = int(WeightFormat.Q4_K), int(WeightFormat.Q5_K), int(WeightFormat.Q6_K)
_ROUND = 1.5 * 2.0**23  # adding it rounds a float32 below 2^22 to an integer, found in the low bits
_SILU, _GELU_TANH = (ACTIVATIONS.index(name) for name in ("silu", "gelu_tanh"))
_GELU_SLOPE, _GELU_CUBIC = np.float32(2 * GELU_SLOPE), np.float32(GELU_CUBIC)
_CLAMP, _CLAMPED_SLOPE = np.float32(CLAMP), np.float32(CLAMPED_SLOPE)
_TINY = 1e-30  # a block whose largest magnitude is below this is all zeros


@intrinsic
def _quantize_block(typing_context: Any, x: Any, quants: Any, header: Any) -> Any:
    """Quantise f32[32] to i8[32] and a header (`matmul_tiles.HEADER_BYTES`), all at addresses."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        e, b = Emitter(builder), builder
        x, quants, header = arguments
        floats, words = vector(F32, BLOCK), vector(I32, BLOCK)
        values = e.load(x, floats, align=4)
        # Magnitudes order as integers, NaN above all: a block with one has a NaN for its scale.
        magnitudes = b.and_(b.bitcast(values, words), e.constant(words, 0x7FFFFFFF))
        largest = b.bitcast(e.fold(magnitudes, e.integer_maximum), F32)
        is_zero = b.fcmp_ordered("<", largest, e.f32(_TINY))
        scale = b.select(is_zero, e.f32(0.0), b.fdiv(largest, e.f32(127.0)))
        inverse = b.select(is_zero, e.f32(0.0), b.fdiv(e.f32(127.0), largest))
        scaled = b.fmul(values, e.splat(inverse, BLOCK))
        magic = e.constant(floats, _ROUND)
        bits = b.bitcast(b.fadd(scaled, magic), words)
        rounded = b.sub(bits, b.bitcast(magic, words))
        total = e.fold(rounded, b.add)
        e.store(b.trunc(rounded, vector(I8, BLOCK)), quants)
        e.store(scale, header, align=4)
        e.store(b.fmul(scale, b.sitofp(total, F32)), e.offset(header, 4), align=4)
        for word, factor in ((8, -8), (12, -128)):
            e.store(b.mul(total, ir.Constant(I32, factor)), e.offset(header, word), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@building_block
def quantize(x: Address, count: int, quants: Address, headers: Address) -> None:
    """Quantise `f32[count]` at address x, in blocks of 32, to 8 bits: x ~ scale * q.

    scale = max |x| / 127, q = round(x * (127 / max |x|)), ties to even.
    """
    for block in range(count // BLOCK):
        _quantize_block(
            x + 4 * BLOCK * block, quants + BLOCK * block, headers + HEADER_BYTES * block
        )


@intrinsic
def _sum_of_squares(typing_context: Any, x: Any, count: Any) -> Any:
    """Sum squares of `f32[count]` at an address: 16 sums by fma, folded in halves. 16 | count."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        e = Emitter(builder)
        x, count = arguments
        floats = vector(F32, LANES)

        def step(index: Any, sums: list[Any]) -> list[Any]:
            values = e.load(e.offset(x, index, 4 * LANES), floats, align=4)
            return [e.fma(values, values, sums[0])]

        steps = builder.sdiv(count, e.i64(LANES))
        (sums,) = e.repeat(steps, [e.constant(floats, 0.0)], step)
        return e.fold(sums, builder.fadd)

    return types.float32(types.int64, types.int64), codegen


@building_block
def rms_norm(x: Float32, weight: Float32, eps: np.float32, out: Float32) -> None:
    """Compute `out = x / sqrt(mean(x^2) + eps) * weight`, all f32[count] (Zhang and Sennrich,
    2019)."""
    count = x.shape[0]
    mean = _sum_of_squares(address_of(x), count) / np.float32(count)
    inverse = np.float32(1.0) / np.sqrt(mean + eps)
    for i in range(count):
        out[i] = x[i] * inverse * weight[i]


@building_block
def rope(head: Float32, cosines: Float32, sines: Float32) -> None:
    """Rotate pairs (i, i + half) of one head, half of each of f32[half], in place (half-split
    order); what a head has beyond them stays."""
    half = cosines.shape[0]
    for i in range(half):
        a, b = head[i], head[i + half]
        head[i] = fma(a, cosines[i], -(b * sines[i]))
        head[i + half] = fma(b, cosines[i], a * sines[i])


@building_block
def swiglu(gate: Float32, up: Float32) -> None:
    """Compute `gate = silu(gate) * up`, in place."""
    for i in range(gate.shape[0]):
        g = gate[i]
        gate[i] = g / (np.float32(1.0) + exp_f32(-g)) * up[i]


@building_block
def gelu_gated(gate: Float32, up: Float32) -> None:
    """Compute `gate = gelu(gate) * up`, by tanh's approximation, in place."""
    for i in range(gate.shape[0]):
        g = gate[i]
        slope = _GELU_SLOPE * (g + _GELU_CUBIC * (g * g * g))  # (1 + tanh(y)) / 2 is sigmoid(2 y)
        gate[i] = g / (np.float32(1.0) + exp_f32(-slope)) * up[i]


@building_block
def clamped_gated(gate: Float32, up: Float32) -> None:
    """Compute gpt-oss's `gate * sigmoid(1.702 * gate) * (up + 1)`, clamped, in place of `gate`."""
    for i in range(gate.shape[0]):
        g = gate[i] if gate[i] < _CLAMP else _CLAMP
        u = up[i] if up[i] < _CLAMP else _CLAMP
        u = u if u > -_CLAMP else -_CLAMP
        gate[i] = g / (np.float32(1.0) + exp_f32(-_CLAMPED_SLOPE * g)) * (u + np.float32(1.0))


@building_block
def activate(activation: int, gate: Float32, up: Float32) -> None:
    """Compute what a down matrix multiplies of gates and ups, in place of the gates."""
    if activation == _SILU:
        swiglu(gate, up)
    elif activation == _GELU_TANH:
        gelu_gated(gate, up)
    else:
        clamped_gated(gate, up)


@building_block
def cap(x: Float32, limit: np.float32) -> None:
    """Compute `x = limit * tanh(x / limit)`, in place."""
    for i in range(x.shape[0]):
        x[i] = limit * tanh_f32(x[i] / limit)


@intrinsic
def _store_half(typing_context: Any, target: Any, x: Any, out: Any) -> Any:
    """Round f32[16] to f16[16] at addresses, to nearest even, clamped to fp16's finite range."""
    traits = traits_of(target)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        e = Emitter(builder)
        values = e.load(arguments[1], vector(F32, LANES), align=4)
        half = e.float_to_half(values, native=traits.native_half)
        e.store(half, arguments[2], align=2)
        return context.get_dummy_value()

    return types.void(target, types.int64, types.int64), codegen


@building_block
def to_half(target: Target, x: Address, count: int, out: Address) -> None:
    """Convert f32[count] at x to f16[count] at out; 16 | count. Finite: clamped to 65504."""
    for start in range(0, count, LANES):
        _store_half(target, x + 4 * start, out + 2 * start)


@intrinsic
def _load_half(typing_context: Any, target: Any, address: Any) -> Any:
    """Load the f16 at an address as float32."""
    traits = traits_of(target)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        e = Emitter(builder)
        half = e.load(arguments[1], vector(F16, 1), align=2)
        wide = e.half_to_float(half, native=traits.native_half)
        return builder.extract_element(wide, ir.Constant(I32, 0))

    return types.float32(target, types.int64), codegen


@building_block
def _embed_super_blocks(
    target: Target,
    format_: int,
    scales: Address,
    quants: Address,
    row: int,
    num_blocks: int,
    out: Float32,
) -> None:
    """Embed a row in a K format: its group's scales and quants are at these addresses."""
    rows = target.rows
    floats = 1 if format_ == _Q6_K else 2
    unit_bytes = 2 * rows * (floats + BLOCKS_PER_SUPER)
    bytes_ = array_at(quants, (num_blocks, 8, rows, 4), np.int8)
    nibbles = array_at(quants, (num_blocks, 4, rows, 4), np.uint8)
    for block in range(num_blocks):
        values = out[block * BLOCK : (block + 1) * BLOCK]
        unit = scales + block // BLOCKS_PER_SUPER * unit_bytes
        integers = array_at(
            unit + 2 * rows * (floats + block % BLOCKS_PER_SUPER), (2, rows), np.int8
        )
        d = _load_half(target, unit + 2 * row)
        first = d * np.float32(integers[0, row])
        if format_ == _Q6_K:
            second = d * np.float32(integers[1, row])
            for i in range(BLOCK):
                scale = first if i < BLOCK // 2 else second
                values[i] = scale * np.float32(bytes_[block, i // 4, row, i % 4])
            continue
        minimum = _load_half(target, unit + 2 * (rows + row)) * np.float32(integers[1, row])
        for i in range(BLOCK):
            if format_ == _Q5_K:
                quant = np.float32(bytes_[block, i // 4, row, i % 4])
            else:
                pair = nibbles[block, i % (BLOCK // 2) // 4, row, i % 4]
                quant = np.float32(pair & 15 if i < BLOCK // 2 else pair >> 4)
            values[i] = first * quant + minimum


@kernel
def embed(target: Target, matrix_at: Address, token: int, out: Float32) -> None:
    """Write row `token` of the packed matrix of a MATRIX record, dequantised, to f32[columns]."""
    matrix = array_at(matrix_at, (1,), MATRIX)[0]
    rows = target.rows
    group = matrix.address + token // rows * matrix.group_bytes
    quants = group + matrix.scale_bytes
    row = token % rows
    if matrix.format == _F32:
        values = array_at(quants, (matrix.num_steps, rows), np.float32)
        for i in range(matrix.num_steps):
            out[i] = values[i, row]
        return
    if matrix.format == _F16:
        for i in range(matrix.num_steps):
            out[i] = _load_half(target, quants + 2 * (i * rows + row))
        return
    if matrix.format == _Q4_K or matrix.format == _Q5_K or matrix.format == _Q6_K:
        _embed_super_blocks(target, matrix.format, group, quants, row, matrix.num_steps, out)
        return
    for block in range(matrix.num_steps):
        values = out[block * BLOCK : (block + 1) * BLOCK]
        if matrix.format == _Q8_0:
            d = _load_half(target, group + 2 * (block * rows + row))
            bytes_ = array_at(quants, (matrix.num_steps, 8, rows, 4), np.int8)
            for i in range(BLOCK):
                values[i] = np.float32(bytes_[block, i // 4, row, i % 4]) * d
            continue
        nibbles = array_at(quants, (matrix.num_steps, 4, rows, 4), np.uint8)
        if matrix.format == _Q4_1:
            d = _load_half(target, group + 2 * (2 * block * rows + row))
            m = _load_half(target, group + 2 * ((2 * block + 1) * rows + row))
        else:
            d = _load_half(target, group + 2 * (block * rows + row))
            m = np.float32(-8.0) * d
        for i in range(BLOCK // 2):
            pair = nibbles[block, i // 4, row, i % 4]
            values[i] = fma(np.float32(pair & 15), d, m)
            values[i + BLOCK // 2] = fma(np.float32(pair >> 4), d, m)
