"""The meaning of `numba_math` in NumPy: the same operations in the same order, elementwise.

Every function takes and gives arrays (or scalars) and equals its compiled twin bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skerry_core.kernels import numba_math as nm

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


def fma_f32(a: Any, b: Any, c: Any) -> Float32:
    """`a * b + c` rounded once to float32.

    The product of two float32 is exact in float64. The sum is rounded to odd (Boldo and Melquiond,
    "Emulation of FMA and correctly rounded sums", 2008), so that rounding it again is harmless.
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        total = product + addend
        addend_part = total - product
        error = (product - (total - addend_part)) + (addend - addend_part)
    bits = np.atleast_1d(total).view(np.int64)
    inexact_even = (np.atleast_1d(error) != 0) & (bits & 1 == 0) & np.isfinite(total)
    towards_zero = np.atleast_1d((error > 0) != (total > 0))
    bits = np.where(inexact_even, np.where(towards_zero, bits - 1, bits + 1), bits)
    with np.errstate(over="ignore", invalid="ignore"):
        return bits.view(np.float64).reshape(np.shape(total)).astype(np.float32)


def exp_f32(x: Any) -> Float32:
    """See `numba_math.exp_f32`."""
    x = np.asarray(x, np.float32)
    clamped = np.where(x > nm.EXP_F32_MIN, x, nm.EXP_F32_MIN)
    clamped = np.where(clamped < nm.EXP_F32_MAX, clamped, nm.EXP_F32_MAX)
    shifted = fma_f32(clamped, nm._INV_LN2_F32, nm._ROUND_F32)
    n = shifted - nm._ROUND_F32
    r = fma_f32(n, -nm._LN2_HIGH_F32, clamped)
    r = fma_f32(n, -nm._LN2_LOW_F32, r)
    p: Any = nm._EXP_F32_P[0]
    for coefficient in nm._EXP_F32_P[1:]:
        p = fma_f32(p, r, coefficient)
    mantissa = fma_f32(p, r * r, r) + np.float32(1.0)
    y = (mantissa.view(np.int32) + (shifted.view(np.int32) << 23)).view(np.float32)
    y = np.where(x >= nm.EXP_F32_MIN, y, np.float32(0.0))
    y = np.where(x <= nm.EXP_F32_MAX, y, np.float32(np.inf))
    return np.where(np.isnan(x), x, y)


def log_f64(x: Any) -> Float64:
    """See `numba_math.log_f64`."""
    x = np.asarray(x, np.float64)
    bits = x.view(np.int64)
    exponent = (bits - nm._SQRT_HALF_BITS) >> 52
    m = (bits - (exponent << 52)).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = np.zeros_like(z)
    for k in range(nm._ATANH_TERMS, 0, -1):
        p = (p + 1.0 / (2 * k + 1)) * z
    low = exponent * nm._LN2_LOW_F64 + 2.0 * (s * p)
    y = exponent * nm._LN2_HIGH_F64 + (2.0 * s + low)
    return np.where(x > 0.0, y, -np.inf)


def log_f32(x: Any) -> Float32:
    """See `numba_math.log_f32`."""
    return log_f64(np.asarray(x, np.float32)).astype(np.float32)


def exp_f64(x: Any) -> Float64:
    """See `numba_math.exp_f64`."""
    x = np.asarray(x, np.float64)
    shifted = x * nm._INV_LN2_F64 + nm._ROUND_F64
    n = shifted - nm._ROUND_F64
    r = (x - n * nm._LN2_HIGH_F64) - n * nm._LN2_LOW_F64
    p = np.zeros_like(r)
    for term in nm._EXP_F64_TERMS:
        p = p * r + term
    result: Float64 = (p.view(np.int64) + (shifted.view(np.int64) << 52)).view(np.float64)
    return result


def sin_cos_f64(x: Any) -> tuple[Float64, Float64]:
    """See `numba_math.sin_cos_f64`."""
    x = np.asarray(x, np.float64)
    shifted = x * nm._TWO_OVER_PI + nm._ROUND_F64
    n = shifted - nm._ROUND_F64
    quadrant = shifted.view(np.int64)
    r = ((x - n * nm._HALF_PI_1) - n * nm._HALF_PI_2) - n * nm._HALF_PI_3
    z = r * r
    p = np.zeros_like(z)
    for term in nm._SIN_TERMS:
        p = (p + term) * z
    sin_r = r + r * p
    p = np.zeros_like(z)
    for term in nm._COS_TERMS:
        p = (p + term) * z
    cos_r = 1.0 + p
    odd = (quadrant & 1) != 0
    sine, cosine = np.where(odd, cos_r, sin_r), np.where(odd, sin_r, cos_r)
    sine = np.where((quadrant & 2) != 0, -sine, sine)
    cosine = np.where(((quadrant + 1) & 2) != 0, -cosine, cosine)
    return sine, cosine


def philox4x32_10(counter: tuple[int, int, int, int], key: int) -> tuple[int, int, int, int]:
    """See `numba_math.philox4x32_10`; Python integers."""
    mask = 0xFFFFFFFF
    c0, c1, c2, c3 = counter
    k0, k1 = key & mask, key >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & mask, (p0 >> 32) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c0, c1, c2, c3


def uniform(seed: int, position: int, choice: int) -> float:
    """See `numba_math.uniform`."""
    mask = 0xFFFFFFFF
    w0, w1, _, _ = philox4x32_10((position & mask, position >> 32, choice & mask, 0), seed)
    return (((w0 << 20) | (w1 >> 12)) + 0.5) * 2.0**-52
