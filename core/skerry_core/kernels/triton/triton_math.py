"""What Triton kernels share: `exact_math.exp_f32` on the device, and the order of float32."""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from skerry_core import exact_math as constants

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)

_EXP_MIN: tl.constexpr = tl.constexpr(float(constants.EXP_F32_MIN))
_EXP_MAX: tl.constexpr = tl.constexpr(float(constants.EXP_F32_MAX))
_INV_LN2: tl.constexpr = tl.constexpr(float(constants.INV_LN2_F32))
_LN2_HIGH: tl.constexpr = tl.constexpr(float(constants.LN2_HIGH_F32))
_LN2_LOW: tl.constexpr = tl.constexpr(float(constants.LN2_LOW_F32))
_ROUND: tl.constexpr = tl.constexpr(float(constants.ROUND_F32))
_P0: tl.constexpr = tl.constexpr(float(constants.EXP_F32_P[0]))
_P1: tl.constexpr = tl.constexpr(float(constants.EXP_F32_P[1]))
_P2: tl.constexpr = tl.constexpr(float(constants.EXP_F32_P[2]))
_P3: tl.constexpr = tl.constexpr(float(constants.EXP_F32_P[3]))
_P4: tl.constexpr = tl.constexpr(float(constants.EXP_F32_P[4]))
_P5: tl.constexpr = tl.constexpr(float(constants.EXP_F32_P[5]))


@triton.jit
def exp_f32(x):
    """Return e^x of a f32 tensor without NaN: on a GPU the bits of `exact_math.exp_f32`."""
    clamped = tl.minimum(tl.maximum(x, _EXP_MIN), _EXP_MAX)
    shifted = tl.fma(clamped, _full(x, _INV_LN2), _full(x, _ROUND))
    n = shifted - _ROUND
    r = tl.fma(n, _full(x, -_LN2_HIGH), clamped)
    r = tl.fma(n, _full(x, -_LN2_LOW), r)
    p = tl.fma(_full(x, _P0), r, _full(x, _P1))
    p = tl.fma(p, r, _full(x, _P2))
    p = tl.fma(p, r, _full(x, _P3))
    p = tl.fma(p, r, _full(x, _P4))
    p = tl.fma(p, r, _full(x, _P5))
    mantissa = tl.fma(p, r * r, r) + 1.0
    exponent = shifted.to(tl.int32, bitcast=True) << 23
    y = (mantissa.to(tl.int32, bitcast=True) + exponent).to(tl.float32, bitcast=True)
    y = tl.where(x >= _EXP_MIN, y, 0.0)
    return tl.where(x <= _EXP_MAX, y, float("inf"))


@triton.jit
def halvings(x):
    """Return how often 1 is halved to come next to e^x, of a f32 tensor of x <= 0 without NaN.

    The exponent that `exp_f32` takes out: it never falls where x does not rise, of any rounding.
    """
    shifted = tl.fma(tl.maximum(x, _EXP_MIN), _full(x, _INV_LN2), _full(x, _ROUND))
    return -(shifted - _ROUND).to(tl.int32)


@triton.jit
def _full(x, value: tl.constexpr):
    return tl.full(x.shape, value, tl.float32)


@triton.jit
def sortable(x):
    """Return i32 keys in the order of f32 values without NaN; -0 counts as 0."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def in_8_bits(x, MOST: tl.constexpr):
    """Return values up to `MOST`, the largest of a format of 8 bits, as they are before its cast.

    A cast to e4m3fn rounds, one to int8 does not.
    """
    if MOST == 127:
        x = tl.floor(x + 0.5)
    return x


@triton.jit
def on_fp8_grid(x):
    """Return f32 up to 448 rounded to what e4m3fn has, ties to even.

    A cast does so on a GPU; Triton's interpreter loses what is carried into the exponent.
    """
    power = (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    magic = tl.maximum(power, 2.0**-6) * (1.5 * 2.0**20)  # three bits of mantissa are above it
    return (x + magic) - magic
