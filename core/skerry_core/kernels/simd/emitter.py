"""A small vocabulary over llvmlite for SIMD kernels that numba cannot write itself.

Addresses are 64-bit integers, vectors are LLVM values of any width (LLVM splits those that are
wider than the machine's registers). Floating point obeys `numba_math`'s rules: what is fused says
so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from skerry_core import exact_math as rm

I8 = ir.IntType(8)
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
F16 = ir.HalfType()
F32 = ir.FloatType()

LANES = 16  # floats per vector wherever a sum's order depends on it, whatever the machine has
F16_MAX = 65504.0

Value = Any  # an ir.Value


def vector(element: ir.Type, count: int) -> ir.VectorType:
    return ir.VectorType(element, count)


class Emitter:
    """Writes instructions at the end of a builder's current block."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    # Constants and addresses

    def i64(self, value: int) -> Value:
        return ir.Constant(I64, value)

    def f32(self, value: float) -> Value:
        return ir.Constant(F32, float(np.float32(value)))

    def constant(self, like: ir.VectorType, value: float | np.float32) -> Value:
        """Return a vector with the same constant in every lane."""
        is_float = isinstance(like.element, ir.FloatType)
        scalar = float(np.float32(value)) if is_float else int(value)
        return ir.Constant(like, [ir.Constant(like.element, scalar)] * like.count)

    def offset(self, address: Value, index: Value | int, stride: int = 1) -> Value:
        """Emit `address + index * stride` bytes."""
        if isinstance(index, int):
            return self.builder.add(address, self.i64(index * stride))
        scaled = index if stride == 1 else self.builder.mul(index, self.i64(stride))
        return self.builder.add(address, scaled)

    # Memory

    def load(self, address: Value, type_: ir.Type, *, align: int = 1) -> Value:
        pointer = self.builder.inttoptr(address, ir.PointerType())
        return self.builder.load(pointer, align=align, typ=type_)

    def store(self, value: Value, address: Value, *, align: int = 1) -> None:
        pointer = self.builder.inttoptr(address, ir.PointerType())
        self.builder.store(value, pointer, align=align)

    def prefetch(self, address: Value, level: int = 2) -> None:
        """Prefetch the cache line at an address, to a level of the cache; any address is harmless.

        More lines can be on their way to the second level than to the first, which bounds what one
        core reads: on a Sapphire Rapids a fifth less than so.
        """
        pointer = self.builder.inttoptr(address, ir.PointerType())
        read, locality, data = I32(0), I32(4 - level), I32(1)
        name, void = "llvm.prefetch.p0", ir.VoidType()
        self.call(name, void, pointer, read, locality, data)

    def load_splat(self, address: Value, element: ir.Type, count: int) -> Value:
        return self.splat(self.load(address, element, align=4), count)

    # Vectors

    def splat(self, scalar: Value, count: int) -> Value:
        type_ = vector(scalar.type, count)
        undefined = ir.Constant(type_, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
        zeros = ir.Constant(vector(I32, count), [ir.Constant(I32, 0)] * count)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def take(self, value: Value, lanes: Sequence[int]) -> Value:
        """Take the given lanes of a vector, as a vector."""
        indices = ir.Constant(vector(I32, len(lanes)), [ir.Constant(I32, i) for i in lanes])
        return self.builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), indices)

    def join(self, vectors: Sequence[Value]) -> Value:
        """Join vectors of one type, end to end; a power of two of them."""
        while len(vectors) > 1:
            lanes = range(2 * vectors[0].type.count)
            indices = ir.Constant(vector(I32, len(lanes)), [ir.Constant(I32, i) for i in lanes])
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [self.builder.shuffle_vector(a, b, indices) for a, b in pairs]
        return vectors[0]

    def call(self, name: str, result: ir.Type, *arguments: Value) -> Value:
        """Call an LLVM intrinsic by its full name."""
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(result, [a.type for a in arguments])
            function = ir.Function(module, kind, name)
        return self.builder.call(function, arguments)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Emit `a * b + c` rounded once in each lane."""
        return self.call(f"llvm.fma.v{a.type.count}f32", a.type, a, b, c)

    def maximum(self, a: Value, b: Value) -> Value:
        """Return the larger of each lane, b where either is NaN; the same on every CPU."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def minimum(self, a: Value, b: Value) -> Value:
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

    def integer_maximum(self, a: Value, b: Value) -> Value:
        return self.builder.select(self.builder.icmp_signed(">", a, b), a, b)

    def fold(self, value: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """Reduce a vector to a scalar: halves onto halves, so the order is fixed."""
        count = value.type.count
        while count > 1:
            count //= 2
            low = self.take(value, range(count))
            value = combine(low, self.take(value, range(count, 2 * count)))
        return self.builder.extract_element(value, ir.Constant(I32, 0))

    # Control flow

    def repeat(
        self,
        count: Value,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """Emit `for i in range(count): carried = body(i, carried)`; count must be at least 1."""
        b = self.builder
        before = b.block
        loop, after = b.append_basic_block("loop"), b.append_basic_block("after")
        b.branch(loop)
        b.position_at_end(loop)
        index = b.phi(I64)
        index.add_incoming(self.i64(0), before)
        values = [b.phi(value.type) for value in carried]
        for phi, value in zip(values, carried, strict=True):
            phi.add_incoming(value, before)
        results = list(body(index, list(values)))
        following = b.add(index, self.i64(1))
        index.add_incoming(following, b.block)
        for phi, value in zip(values, results, strict=True):
            phi.add_incoming(value, b.block)
        b.cbranch(b.icmp_signed("<", following, count), loop, after)
        b.position_at_end(after)
        return results

    def repeat_maybe(self, count: Value, body: Callable[[Value], None]) -> None:
        """Emit `for i in range(count): body(i)`, for any count, with nothing carried."""

        def step(index: Value, carried: list[Value]) -> list[Value]:
            body(index)
            return carried

        with self.builder.if_then(self.builder.icmp_signed(">", count, self.i64(0))):
            self.repeat(count, [], step)

    # Arithmetic

    def exp(self, x: Value) -> Value:
        """Emit `numba_math.exp_f32` of each lane, bit for bit, for x <= 0 and not NaN."""
        b, type_ = self.builder, x.type
        bits = vector(I32, type_.count)
        clamped = self.maximum(x, self.constant(type_, rm.EXP_F32_MIN))
        magic = self.constant(type_, rm.ROUND_F32)
        shifted = self.fma(clamped, self.constant(type_, rm.INV_LN2_F32), magic)
        n = b.fsub(shifted, magic)
        r = self.fma(n, self.constant(type_, -rm.LN2_HIGH_F32), clamped)
        r = self.fma(n, self.constant(type_, -rm.LN2_LOW_F32), r)
        p = self.constant(type_, rm.EXP_F32_P[0])
        for coefficient in rm.EXP_F32_P[1:]:
            p = self.fma(p, r, self.constant(type_, coefficient))
        one = self.constant(type_, 1.0)
        mantissa = b.fadd(self.fma(p, b.fmul(r, r), r), one)
        exponent = b.shl(b.bitcast(shifted, bits), self.constant(bits, 23))
        y = b.bitcast(b.add(b.bitcast(mantissa, bits), exponent), type_)
        tiny = b.fcmp_ordered("<", x, self.constant(type_, rm.EXP_F32_MIN))
        return b.select(tiny, self.constant(type_, 0.0), y)

    def half_to_float(self, half: Value, *, native: bool) -> Value:
        """Convert <n x half> to <n x float>; finite values only when not native."""
        b, count = self.builder, half.type.count
        if native:
            return b.fpext(half, vector(F32, count))
        wide = vector(I32, count)
        bits = b.zext(b.bitcast(half, vector(I16, count)), wide)
        magnitude = b.shl(b.and_(bits, self.constant(wide, 0x7FFF)), self.constant(wide, 13))
        sign = b.shl(b.and_(bits, self.constant(wide, 0x8000)), self.constant(wide, 16))
        # Moves the exponent's bias from 15 to 127, exactly, subnormals included.
        scaled = b.fmul(
            b.bitcast(magnitude, vector(F32, count)), self.constant(vector(F32, count), 2.0**112)
        )
        return b.bitcast(b.or_(b.bitcast(scaled, wide), sign), vector(F32, count))

    def float_to_half(self, x: Value, *, native: bool) -> Value:
        """Convert <n x float> to <n x half>, to nearest even; beyond fp16's range the largest
        finite."""
        b, count = self.builder, x.type.count
        limit = self.constant(x.type, F16_MAX)
        x = self.maximum(self.minimum(x, limit), self.constant(x.type, -F16_MAX))
        if native:
            return b.fptrunc(x, vector(F16, count))
        wide = vector(I32, count)
        bits = b.bitcast(x, wide)
        sign = b.lshr(b.and_(bits, self.constant(wide, -(2**31))), self.constant(wide, 16))
        magnitude = b.and_(bits, self.constant(wide, 0x7FFFFFFF))
        odd = b.and_(b.lshr(magnitude, self.constant(wide, 13)), self.constant(wide, 1))
        rebias = self.constant(wide, (15 - 127) * 2**23 + 0xFFF)
        normal = b.lshr(b.add(b.add(magnitude, rebias), odd), self.constant(wide, 13))
        # Adding 0.5 aligns a subnormal's last bit with the float's, so the addition rounds it.
        half = self.constant(x.type, 0.5)
        aligned = b.fadd(b.bitcast(magnitude, x.type), half)
        subnormal = b.sub(b.bitcast(aligned, wide), b.bitcast(half, wide))
        is_subnormal = b.icmp_unsigned("<", magnitude, self.constant(wide, 113 << 23))
        result = b.or_(b.select(is_subnormal, subnormal, normal), sign)
        return b.bitcast(b.trunc(result, vector(I16, count)), vector(F16, count))
