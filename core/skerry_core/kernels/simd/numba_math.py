"""Scalar building blocks of the numba kernels, whose bits are the same on every CPU.

Rules of the house, and the reason for each:

- One set of compile options (`kernel`, `building_block`), without fastmath: LLVM may then neither
  reorder a sum nor contract a product and a sum, so a vector unit changes speed and nothing else.
- A fused multiply-add is written as one (`fma`); libm's exp, log, sin and cos, which differ between
  CPUs and C libraries, are never called.
- No branches on data: each function vectorises when it is called in a loop.

`exact_math` has the constants, and the same functions in NumPy, equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.extending
import numpy as np
from llvmlite import ir
from numba import njit, types

from skerry_core.exact_math import (
    ATANH_TERMS,
    COS_TERMS,
    EXP_F32_MAX,
    EXP_F32_MIN,
    EXP_F32_P,
    EXP_F64_TERMS,
    HALF_PI_1,
    HALF_PI_2,
    HALF_PI_3,
    INV_LN2_F32,
    INV_LN2_F64,
    LN2_HIGH_F32,
    LN2_HIGH_F64,
    LN2_LOW_F32,
    LN2_LOW_F64,
    ROUND_F32,
    ROUND_F64,
    SIN_TERMS,
    SQRT_HALF_BITS,
    TWO_OVER_PI,
)

# `error_model="numpy"`: a division by zero is inf or nan, not a raise, which would end vectorising.
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy"}

kernel = njit(**_OPTIONS)
"""Decorates a compiled function. The runner that calls it switches on its on-disk cache."""

building_block = njit(**_OPTIONS, forceinline=True)
"""Decorates a small function that is always inlined, so that loops around it vectorise."""


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap numba's decorator of that name, typed: code sees no typing context."""
    compiled: Callable[..., Any] = numba.extending.intrinsic(function)
    return compiled


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return `a * b + c` rounded once, in float32 (float64 when all three are)."""
    is_double = (a, b, c) == (types.float64,) * 3
    scalar = types.float64 if is_double else types.float32

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return scalar(scalar, scalar, scalar), codegen


def _bitcast(source: Any, target: Any, target_ir: ir.Type) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], target_ir)

    return target(source), codegen


@intrinsic
def f32_bits(typing_context: Any, x: Any) -> Any:
    """Return the bits of a float32 as int32."""
    return _bitcast(types.float32, types.int32, ir.IntType(32))


@intrinsic
def bits_f32(typing_context: Any, bits: Any) -> Any:
    """Return the float32 with these int32 bits."""
    return _bitcast(types.int32, types.float32, ir.FloatType())


@intrinsic
def f64_bits(typing_context: Any, x: Any) -> Any:
    """Return the bits of a float64 as int64."""
    return _bitcast(types.float64, types.int64, ir.IntType(64))


@intrinsic
def bits_f64(typing_context: Any, bits: Any) -> Any:
    """Return the float64 with these int64 bits."""
    return _bitcast(types.int64, types.float64, ir.DoubleType())


@building_block
def exp_f32(x: np.float32) -> np.float32:
    """Return e^x of a float32, within 1 ulp; 0 below `EXP_F32_MIN`, inf above `EXP_F32_MAX`; NaN
    stays."""
    clamped = x if x > EXP_F32_MIN else EXP_F32_MIN
    clamped = clamped if clamped < EXP_F32_MAX else EXP_F32_MAX
    shifted = fma(clamped, INV_LN2_F32, ROUND_F32)
    n = shifted - ROUND_F32
    r = fma(n, -LN2_HIGH_F32, clamped)
    r = fma(n, -LN2_LOW_F32, r)
    p = EXP_F32_P[0]
    for coefficient in EXP_F32_P[1:]:
        p = fma(p, r, coefficient)
    mantissa = fma(p, r * r, r) + np.float32(1.0)
    y = bits_f32(np.int32(f32_bits(mantissa) + (f32_bits(shifted) << 23)))
    y = y if x >= EXP_F32_MIN else np.float32(0.0)
    y = y if x <= EXP_F32_MAX else np.float32(np.inf)
    return y if x == x else x


@building_block
def tanh_f32(x: np.float32) -> np.float32:
    """Return the hyperbolic tangent of a float32, within 2^-23 absolutely; NaN stays."""
    magnitude = x if x >= np.float32(0.0) else -x
    small = exp_f32(np.float32(-2.0) * magnitude)
    y = (np.float32(1.0) - small) / (np.float32(1.0) + small)
    return y if x >= np.float32(0.0) else -y


@building_block
def log_f64(x: float) -> float:
    """Return natural logarithm of a float64, within 2 ulp; -inf for 0. Not for negatives, inf or
    nan."""
    bits = f64_bits(x)
    exponent = (bits - SQRT_HALF_BITS) >> 52
    m = bits_f64(bits - (exponent << 52))
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 0.0
    for k in range(ATANH_TERMS, 0, -1):
        p = (p + 1.0 / (2 * k + 1)) * z
    low = exponent * LN2_LOW_F64 + 2.0 * (s * p)
    y = exponent * LN2_HIGH_F64 + (2.0 * s + low)
    return y if x > 0.0 else -np.inf


@building_block
def log_f32(x: np.float32) -> np.float32:
    """Return natural logarithm of a float32, rounded from `log_f64`."""
    return np.float32(log_f64(np.float64(x)))


@building_block
def exp_f64(x: float) -> float:
    """Return e^x of a float64 in [-700, 700], within 2 ulp. For tables made once (e.g. theta^y)."""
    shifted = x * INV_LN2_F64 + ROUND_F64
    n = shifted - ROUND_F64
    r = (x - n * LN2_HIGH_F64) - n * LN2_LOW_F64
    p = 0.0
    for term in EXP_F64_TERMS:
        p = p * r + term
    return bits_f64(f64_bits(p) + (f64_bits(shifted) << 52))


@building_block
def sin_cos_f64(x: float) -> tuple[float, float]:
    """Return sine and cosine of a float64 with |x| <= 1.6e6, absolute error below 3e-16.

    For tables of rotary embeddings, where x is a position times a frequency of at most 1.
    """
    shifted = x * TWO_OVER_PI + ROUND_F64
    n = shifted - ROUND_F64
    quadrant = f64_bits(shifted)
    r = ((x - n * HALF_PI_1) - n * HALF_PI_2) - n * HALF_PI_3
    z = r * r
    p = 0.0
    for term in SIN_TERMS:
        p = (p + term) * z
    sin_r = r + r * p
    p = 0.0
    for term in COS_TERMS:
        p = (p + term) * z
    cos_r = 1.0 + p
    odd = (quadrant & 1) != 0
    sine = cos_r if odd else sin_r
    cosine = sin_r if odd else cos_r
    sine = -sine if (quadrant & 2) != 0 else sine
    cosine = -cosine if ((quadrant + 1) & 2) != 0 else cosine
    return sine, cosine


_MASK_32 = np.uint64(0xFFFFFFFF)
_SHIFT_32 = np.uint64(32)
_PHILOX_M0 = np.uint64(0xD2511F53)
_PHILOX_M1 = np.uint64(0xCD9E8D57)
_PHILOX_W0 = np.uint64(0x9E3779B9)
_PHILOX_W1 = np.uint64(0xBB67AE85)


@building_block
def philox4x32_10(
    c0: np.uint64, c1: np.uint64, c2: np.uint64, c3: np.uint64, key: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Return four random 32-bit words of a counter of four 32-bit words (all in uint64) and a
    64-bit key.

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11.
    """
    k0, k1 = key & _MASK_32, key >> _SHIFT_32
    for _ in range(10):
        p0, p1 = _PHILOX_M0 * c0, _PHILOX_M1 * c2
        c0, c2 = (p1 >> _SHIFT_32) ^ c1 ^ k0, (p0 >> _SHIFT_32) ^ c3 ^ k1
        c1, c3 = p1 & _MASK_32, p0 & _MASK_32
        k0, k1 = (k0 + _PHILOX_W0) & _MASK_32, (k1 + _PHILOX_W1) & _MASK_32
    return c0, c1, c2, c3


@building_block
def uniform(seed: np.uint64, position: int, choice: int) -> float:
    """Return a token's uniform in (0, 1): key = seed, counter = (position low, high, choice, 0).

    52 random bits, centred: (k + 1/2) / 2^52 is exact, and neither 0 nor 1.
    """
    p = np.uint64(position)
    c = np.uint64(choice) & _MASK_32
    w0, w1, _, _ = philox4x32_10(p & _MASK_32, p >> _SHIFT_32, c, np.uint64(0), seed)
    bits = (w0 << np.uint64(20)) | (w1 >> np.uint64(12))
    return (np.float64(bits) + 0.5) * 2.0**-52
