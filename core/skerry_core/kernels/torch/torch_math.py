"""`exact_math` in Torch: elementary functions whose bits do not depend on device or position.

Torch's own `exp` may differ between a vector and its remainder, so the place of an element in a
tensor can change its bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from skerry_core import exact_math as constants

EXP_F32_MIN = float(constants.EXP_F32_MIN)
EXP_F32_MAX = float(constants.EXP_F32_MAX)
EXP_F32_P = tuple(float(c) for c in constants.EXP_F32_P)


def exp_f32(x: Tensor) -> Tensor:
    """Return e^x of f32, as `exact_math.exp_f32`: 0 below the smallest normal, NaN stays NaN."""
    clamped = x.clamp(EXP_F32_MIN, EXP_F32_MAX)
    shifted = _fma(clamped, float(constants.INV_LN2_F32), float(constants.ROUND_F32))
    n = shifted - float(constants.ROUND_F32)
    r = _fma(n, -float(constants.LN2_HIGH_F32), clamped)
    r = _fma(n, -float(constants.LN2_LOW_F32), r)
    p = torch.full_like(r, EXP_F32_P[0])
    for coefficient in EXP_F32_P[1:]:
        p = _fma(p, r, coefficient)
    mantissa = _fma(p, r * r, r) + 1.0
    y = (mantissa.view(torch.int32) + (shifted.view(torch.int32) << 23)).view(torch.float32)
    y = torch.where(x >= EXP_F32_MIN, y, 0.0)
    y = torch.where(x <= EXP_F32_MAX, y, torch.inf)
    return torch.where(x.isnan(), x, y)


def _fma(a: Tensor, b: Tensor | float, c: Tensor | float) -> Tensor:
    """Return `a * b + c` of f32 with one rounding, save for one case in about 2^29.

    The product of two float32 is exact in float64; the sum is rounded there and once more to
    float32, which matters only where the first lands on a tie of the second.
    """
    wide_b = b.double() if isinstance(b, Tensor) else b
    wide_c = c.double() if isinstance(c, Tensor) else c
    return (a.double() * wide_b + wide_c).float()


def tanh_f32(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent of f32, within 2^-23 absolutely; see `numba_math.tanh_f32`."""
    small = exp_f32(-2 * x.abs())
    return torch.copysign((1 - small) / (1 + small), x)
