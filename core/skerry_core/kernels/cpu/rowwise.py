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
from skerry_core.kernels.matmul.layout import BLOCK
from skerry_core.kernels.matmul.matmul_tiles import HEADER_BYTES
from skerry_core.kernels.simd.aliases import Address, Float32
from skerry_core.kernels.simd.emitter import F32, I8, I32, LANES, Emitter, vector
from skerry_core.kernels.simd.memory import address_of
from skerry_core.kernels.simd.numba_math import (
    building_block,
    exp_f32,
    fma,
    intrinsic,
    tanh_f32,
)
from skerry_core.kernels.simd.targets import Target, traits_of

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
        half = e.fold(e.take(rounded, range(BLOCK // 2)), b.add)
        for word, count, factor in ((8, half, -32), (12, total, -128)):
            e.store(b.mul(count, ir.Constant(I32, factor)), e.offset(header, word), align=4)
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
