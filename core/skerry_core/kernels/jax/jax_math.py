"""`exact_math` in JAX: elementary functions with the same bits on every device.

64-bit types are off in JAX unless a scope turns them on: everything here is for `jax.enable_x64`.
XLA may contract a product and a sum of one type, and narrow a quotient of widened operands; so
products are taken in float64, where those of float32 are exact, and divisors come as float64.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from skerry_core.exact_math import (
    EXP_F32_MAX,
    EXP_F32_MIN,
    EXP_F32_P,
    INV_LN2_F32,
    LN2_HIGH_F32,
    LN2_LOW_F32,
    ROUND_F32,
)

_KEYS = 0x9E3779B9, 0xBB67AE85  # Philox: what a round adds to the key
_FACTORS = 0xD2511F53, 0xCD9E8D57
_ROUNDS = 10


def exp_f32(x: Array) -> Array:
    """Compute e^x of f32, as `exact_math.exp_f32`: 0 below the smallest normal, NaN stays NaN."""
    clamped = jnp.clip(x, EXP_F32_MIN, EXP_F32_MAX)
    shifted = _fma(clamped, INV_LN2_F32, ROUND_F32)
    n = shifted - ROUND_F32
    r = _fma(n, -LN2_HIGH_F32, clamped)
    r = _fma(n, -LN2_LOW_F32, r)
    p = jnp.full_like(r, EXP_F32_P[0])
    for coefficient in EXP_F32_P[1:]:
        p = _fma(p, r, coefficient)
    mantissa = _fma(p, r * r, r) + jnp.float32(1)
    exponent = jax.lax.bitcast_convert_type(shifted, jnp.int32) << 23
    bits = jax.lax.bitcast_convert_type(mantissa, jnp.int32) + exponent
    y = jax.lax.bitcast_convert_type(bits, jnp.float32)
    y = jnp.where(x >= EXP_F32_MIN, y, jnp.float32(0))
    y = jnp.where(x <= EXP_F32_MAX, y, jnp.float32(jnp.inf))
    return jnp.where(jnp.isnan(x), x, y)


def _fma(a: Array, b: object, c: object) -> Array:
    """Compute `a * b + c` of f32 with one rounding, as `exact_math.fma_f32`."""
    product = a.astype(jnp.float64) * jnp.asarray(b).astype(jnp.float64)
    addend = jnp.asarray(c).astype(jnp.float64)
    total = product + addend
    addend_part = total - product
    error = (product - (total - addend_part)) + (addend - addend_part)
    bits = jax.lax.bitcast_convert_type(total, jnp.int64)
    is_even = (error != 0) & (bits & 1 == 0) & jnp.isfinite(total)
    odd = jnp.where((error > 0) != (total > 0), bits - 1, bits + 1)
    rounded = jax.lax.bitcast_convert_type(jnp.where(is_even, odd, bits), jnp.float64)
    return rounded.astype(jnp.float32)


def uniform(seed: Array, position: Array, choice: Array) -> Array:
    """Compute `exact_math.uniform`, f64, of u64, i64 and i32: Philox4x32-10 (Salmon et al., SC'11)
    of (position, choice), keyed by the seed."""

    def word(value: Array) -> Array:
        return value.astype(jnp.uint64) & 0xFFFFFFFF

    c0, c1, c2, c3 = word(position), word(position >> 32), word(choice), jnp.zeros_like(seed)
    k0, k1 = word(seed), seed >> 32
    for _ in range(_ROUNDS):
        p0, p1 = _FACTORS[0] * c0, _FACTORS[1] * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, word(p1), (p0 >> 32) ^ c3 ^ k1, word(p0)
        k0, k1 = word(k0 + _KEYS[0]), word(k1 + _KEYS[1])
    bits = (c0 << 20) | (c1 >> 12)
    return (bits.astype(jnp.float64) + 0.5) * 2.0**-52
