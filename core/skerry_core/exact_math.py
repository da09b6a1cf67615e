"""Elementary functions whose bits are the same on every CPU: the meaning of `numba_math`.

Plain NumPy, elementwise, over arrays or scalars. Each equals its compiled twin bit for bit, since
both do the same IEEE operations in the same order; the constants are shared.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


def fma_f32(a: Any, b: Any, c: Any) -> Float32:
    """Return `a * b + c` rounded once to float32.

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


# exp, float32: n = round(x / ln 2), r = x - n ln 2, then 2^n (1 + r + r^2 P(r)).
EXP_F32_MIN = np.float32(-87.33654)  # below: 0, since subnormals are slow and no use to a softmax
EXP_F32_MAX = np.float32(88.72283)  # above: inf
INV_LN2_F32 = np.float32(1.4426950408889634)
LN2_HIGH_F32 = np.float32(0.693359375)  # 11 bits: n * high is exact
LN2_LOW_F32 = np.float32(math.log(2.0) - 0.693359375)
ROUND_F32 = np.float32(1.5 * 2**23)  # adding it rounds to an integer, found in the low bits
EXP_F32_P = tuple(  # Cephes expf (S. Moshier), highest power first
    np.float32(c)
    for c in (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
)


def exp_f32(x: Any) -> Float32:
    """See `numba_math.exp_f32`."""
    x = np.asarray(x, np.float32)
    clamped = np.where(x > EXP_F32_MIN, x, EXP_F32_MIN)
    clamped = np.where(clamped < EXP_F32_MAX, clamped, EXP_F32_MAX)
    shifted = fma_f32(clamped, INV_LN2_F32, ROUND_F32)
    n = shifted - ROUND_F32
    r = fma_f32(n, -LN2_HIGH_F32, clamped)
    r = fma_f32(n, -LN2_LOW_F32, r)
    p: Any = EXP_F32_P[0]
    for coefficient in EXP_F32_P[1:]:
        p = fma_f32(p, r, coefficient)
    mantissa = fma_f32(p, r * r, r) + np.float32(1.0)
    y = (mantissa.view(np.int32) + (shifted.view(np.int32) << 23)).view(np.float32)
    y = np.where(x >= EXP_F32_MIN, y, np.float32(0.0))
    y = np.where(x <= EXP_F32_MAX, y, np.float32(np.inf))
    return np.where(np.isnan(x), x, y)


def tanh_f32(x: Any) -> Float32:
    """See `numba_math.tanh_f32`."""
    x = np.asarray(x, np.float32)
    small = exp_f32(np.float32(-2) * np.abs(x))
    y: Float32 = np.copysign((np.float32(1) - small) / (np.float32(1) + small), x)
    return y


# log, float64: x = 2^e m with m in [sqrt(1/2), sqrt(2)), then log m = 2 atanh((m - 1) / (m + 1)).
LN2_HIGH_F64 = float.fromhex("0x1.62e42fee00000p-1")  # 32 bits: e * high is exact
LN2_LOW_F64 = float.fromhex("0x1.a39ef35793c76p-33")
SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
ATANH_TERMS = 10  # |s| <= 0.172: the next term is below 2^-56 of the first


def log_f64(x: Any) -> Float64:
    """See `numba_math.log_f64`."""
    x = np.asarray(x, np.float64)
    bits = x.view(np.int64)
    exponent = (bits - SQRT_HALF_BITS) >> 52
    m = (bits - (exponent << 52)).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = np.zeros_like(z)
    for k in range(ATANH_TERMS, 0, -1):
        p = (p + 1.0 / (2 * k + 1)) * z
    low = exponent * LN2_LOW_F64 + 2.0 * (s * p)
    y = exponent * LN2_HIGH_F64 + (2.0 * s + low)
    return np.where(x > 0.0, y, -np.inf)


def log_f32(x: Any) -> Float32:
    """See `numba_math.log_f32`."""
    return log_f64(np.asarray(x, np.float32)).astype(np.float32)


# exp, float64: as in float32 without fma, with the Taylor series of e^r, |r| <= ln(2) / 2.
INV_LN2_F64 = 1.4426950408889634
ROUND_F64 = 1.5 * 2.0**52
EXP_F64_TERMS = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1))


def exp_f64(x: Any) -> Float64:
    """See `numba_math.exp_f64`."""
    x = np.asarray(x, np.float64)
    shifted = x * INV_LN2_F64 + ROUND_F64
    n = shifted - ROUND_F64
    r = (x - n * LN2_HIGH_F64) - n * LN2_LOW_F64
    p = np.zeros_like(r)
    for term in EXP_F64_TERMS:
        p = p * r + term
    result: Float64 = (p.view(np.int64) + (shifted.view(np.int64) << 52)).view(np.float64)
    return result


# sin and cos, float64: n = round(x / (pi / 2)), r = x - n pi / 2 in three parts, Taylor series.
TWO_OVER_PI = 2.0 / math.pi
HALF_PI_1 = float.fromhex("0x1.921fb54400000p+0")  # 33 bits: n * part is exact for |n| < 2^20
HALF_PI_2 = float.fromhex("0x1.0b4611a600000p-34")
HALF_PI_3 = float.fromhex("0x1.3198a2e037073p-69")
SIN_TERMS = tuple((-1.0) ** k / math.factorial(2 * k + 1) for k in range(8, 0, -1))
COS_TERMS = tuple((-1.0) ** k / math.factorial(2 * k) for k in range(9, 0, -1))


def sin_cos_f64(x: Any) -> tuple[Float64, Float64]:
    """See `numba_math.sin_cos_f64`."""
    x = np.asarray(x, np.float64)
    shifted = x * TWO_OVER_PI + ROUND_F64
    n = shifted - ROUND_F64
    quadrant = shifted.view(np.int64)
    r = ((x - n * HALF_PI_1) - n * HALF_PI_2) - n * HALF_PI_3
    z = r * r
    p = np.zeros_like(z)
    for term in SIN_TERMS:
        p = (p + term) * z
    sin_r = r + r * p
    p = np.zeros_like(z)
    for term in COS_TERMS:
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
