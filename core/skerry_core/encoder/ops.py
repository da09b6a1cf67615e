"""Row operations of encoders in SIMD, each as one intrinsic over addresses of float32 rows.

Every sum has one order, whatever the batch: a product is one chain of fused multiply-adds per
output, and sums along a row go through 16 lanes, halves folded onto halves. `reference`
says in NumPy what each one means.
"""

from __future__ import annotations

from typing import Any

from numba import types

from skerry_core.kernels.simd.emitter import F32, LANES, Emitter, Value, vector
from skerry_core.kernels.simd.numba_math import intrinsic

ROW_BYTES = LANES * 4  # of one vector
_VECTOR = vector(F32, LANES)

# Abramowitz and Stegun 7.1.26, within 1.5e-7: erfc(z) = t (a1 + t (a2 + …)) exp(-z²) for z >= 0,
# with t = 1 / (1 + p z). The polynomial's coefficients, highest power first.
_ERFC = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_ERFC_P = 0.3275911
_SQRT_HALF = 0.7071067811865476


def _multiply_tile(tokens: int, panels: int) -> Any:
    """Make an intrinsic that multiplies `tokens` rows by `panels` neighbouring panels of 16
    outputs."""

    @intrinsic
    def multiply_tile(
        typing_context: Any,
        x: Any,  # address: f32[tokens, >= depth], the first row
        x_stride: Any,  # bytes from one token to the next
        panel: Any,  # address: f32[panels, depth, 16]
        bias: Any,  # address: f32[panels, 16], where the sums start
        depth: Any,  # at least 1
        out: Any,  # address: f32[tokens, 16 panels], written
        out_stride: Any,  # bytes
    ) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            e = Emitter(builder)
            x, x_stride, panel, bias, depth, out, out_stride = arguments
            rows = [e.offset(x, builder.mul(x_stride, e.i64(t))) for t in range(tokens)]
            panel_bytes = builder.mul(depth, e.i64(ROW_BYTES))
            firsts = [e.offset(panel, builder.mul(panel_bytes, e.i64(p))) for p in range(panels)]

            def step(k: Value, sums: list[Value]) -> list[Value]:
                weights = [e.load(e.offset(at, k, ROW_BYTES), _VECTOR, align=4) for at in firsts]
                following = []
                for t, row in enumerate(rows):
                    value = e.load_splat(e.offset(row, k, 4), F32, LANES)
                    for p, weight in enumerate(weights):
                        following.append(e.fma(value, weight, sums[t * panels + p]))
                return following

            starts = [
                e.load(e.offset(bias, p * ROW_BYTES), _VECTOR, align=4) for p in range(panels)
            ]
            sums = e.repeat(depth, starts * tokens, step)
            for t in range(tokens):
                row = e.offset(out, builder.mul(out_stride, e.i64(t)))
                for p in range(panels):
                    e.store(sums[t * panels + p], e.offset(row, p * ROW_BYTES), align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), codegen

    return multiply_tile


# Tiles by tokens and panels, as many sums as registers hold beside the operands: 24 of 512 bits, or
# 12 of 256 bits. An output is the same chain of sums in every tile.
multiply_12_2 = _multiply_tile(12, 2)
multiply_12_1 = _multiply_tile(12, 1)
multiply_6_1 = _multiply_tile(6, 1)
multiply_2_1 = _multiply_tile(2, 1)
multiply_1_1 = _multiply_tile(1, 1)


@intrinsic
def add_layer_norm(
    typing_context: Any,
    x: Any,  # address: f32[16 vectors]
    residual: Any,  # address: f32[16 vectors], added to x first
    gamma: Any,  # address: f32[16 vectors]
    beta: Any,  # address: f32[16 vectors]
    epsilon: Any,  # f32
    vectors: Any,  # at least 1
    out: Any,  # address: f32[16 vectors], written; may be `residual`
) -> Any:
    """Normalise one row of `x + residual` to mean 0 and variance 1, then scale and shift it."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        e = Emitter(builder)
        x, residual, gamma, beta, epsilon, vectors, out = arguments

        def load(address: Value, i: Value) -> Value:
            return e.load(e.offset(address, i, ROW_BYTES), _VECTOR, align=4)

        def add(i: Value, sums: list[Value]) -> list[Value]:
            total = builder.fadd(load(x, i), load(residual, i))
            e.store(total, e.offset(out, i, ROW_BYTES), align=4)
            return [builder.fadd(sums[0], total)]

        size = builder.uitofp(builder.mul(vectors, e.i64(LANES)), F32)
        zero = e.constant(_VECTOR, 0.0)
        (lanes,) = e.repeat(vectors, [zero], add)
        mean = e.splat(builder.fdiv(e.fold(lanes, builder.fadd), size), LANES)

        def square(i: Value, sums: list[Value]) -> list[Value]:
            centred = builder.fsub(load(out, i), mean)
            return [e.fma(centred, centred, sums[0])]

        (lanes,) = e.repeat(vectors, [zero], square)
        variance = builder.fdiv(e.fold(lanes, builder.fadd), size)
        deviation = e.call("llvm.sqrt.f32", F32, builder.fadd(variance, epsilon))
        scale = e.splat(builder.fdiv(e.f32(1.0), deviation), LANES)

        def write(i: Value) -> None:
            centred = builder.fmul(builder.fsub(load(out, i), mean), scale)
            e.store(
                e.fma(centred, load(gamma, i), load(beta, i)),
                e.offset(out, i, ROW_BYTES),
                align=4,
            )

        e.repeat_maybe(vectors, write)
        return context.get_dummy_value()

    arguments = [types.int64] * 4 + [types.float32] + [types.int64] * 2
    return types.void(*arguments), codegen


@intrinsic
def gelu(typing_context: Any, x: Any, vectors: Any) -> Any:
    """Compute `x Φ(x)` in place: the exact GELU, by the error function. `x` is an address."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        e = Emitter(builder)
        start, vectors = arguments

        def write(i: Value) -> None:
            address = e.offset(start, i, ROW_BYTES)
            x = e.load(address, _VECTOR, align=4)
            zero, one = e.constant(_VECTOR, 0.0), e.constant(_VECTOR, 1.0)
            positive = builder.fcmp_ordered(">", x, zero)
            z = builder.fmul(
                builder.select(positive, x, builder.fsub(zero, x)), e.constant(_VECTOR, _SQRT_HALF)
            )
            t = builder.fdiv(one, e.fma(z, e.constant(_VECTOR, _ERFC_P), one))
            p = e.constant(_VECTOR, _ERFC[0])
            for coefficient in _ERFC[1:]:
                p = e.fma(p, t, e.constant(_VECTOR, coefficient))
            decay = e.exp(builder.fsub(zero, builder.fmul(z, z)))
            tail = builder.fmul(builder.fmul(p, t), decay)  # erfc(z)
            half_tail = builder.fmul(builder.fmul(x, e.constant(_VECTOR, 0.5)), tail)
            y = builder.select(positive, builder.fsub(x, half_tail), half_tail)
            e.store(y, address, align=4)

        e.repeat_maybe(vectors, write)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def exp_row(typing_context: Any, x: Any, scale: Any, vectors: Any) -> Any:
    """Compute `exp(scale (x - max(x)))` in place; return the sum. `x`: address, `scale` > 0."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        e = Emitter(builder)
        start, scale, vectors = arguments

        def load(i: Value) -> Value:
            return e.load(e.offset(start, i, ROW_BYTES), _VECTOR, align=4)

        (lanes,) = e.repeat(
            vectors,
            [e.load(start, _VECTOR, align=4)],
            lambda i, largest: [e.maximum(load(i), largest[0])],
        )
        largest = e.splat(e.fold(lanes, _larger(builder)), LANES)
        factor = e.splat(scale, LANES)

        def write(i: Value, sums: list[Value]) -> list[Value]:
            y = e.exp(builder.fmul(builder.fsub(load(i), largest), factor))
            e.store(y, e.offset(start, i, ROW_BYTES), align=4)
            return [builder.fadd(sums[0], y)]

        (lanes,) = e.repeat(vectors, [e.constant(_VECTOR, 0.0)], write)
        return e.fold(lanes, builder.fadd)

    return types.float32(types.int64, types.float32, types.int64), codegen


def _larger(builder: Any) -> Any:
    return lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b)


@intrinsic
def scale_row(typing_context: Any, x: Any, factor: Any, vectors: Any) -> Any:
    """Multiply a row by `factor` in place. `x` is an address."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        e = Emitter(builder)
        start, factor, vectors = arguments
        factors = e.splat(factor, LANES)

        def write(i: Value) -> None:
            address = e.offset(start, i, ROW_BYTES)
            e.store(builder.fmul(e.load(address, _VECTOR, align=4), factors), address, align=4)

        e.repeat_maybe(vectors, write)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64), codegen
