"""Finds where a sorted vocabulary would be cut, without sorting it. See `jax_sampling`.

Amounts are integers, so their sums are exact in any order. A search goes down the bits of a key,
four at a time: one pass over the vocabulary sums what each next digit has (a radix select).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

_DIGIT_BITS = 4
_HIGHEST = (1 << _DIGIT_BITS) - 1


def sortable(x: Array) -> Array:
    """Return keys u32 that are ordered as f32 without NaN; -0 has that of 0."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    bits = jnp.where(bits == sign, 0, bits)
    return jnp.where(bits >= sign, ~bits, bits | sign)


def value_of(key: Array) -> Array:
    """Return the f32 that has a key of `sortable`."""
    sign = jnp.uint32(1 << 31)
    return jax.lax.bitcast_convert_type(jnp.where(key >= sign, key ^ sign, ~key), jnp.float32)


def find(keys: Array, amounts: Array, limit: Array, *, bits: int = 32) -> tuple[Array, Array]:
    """Find the largest key from which on amounts sum up to the limit, and the sum beyond it.

    Of each row: keys u32[S or 1, V] below 2^bits, amounts i64[S, V] of at least 0, limit i64[S] of
    at least 1. Returns u32[S], i64[S]; garbage where all of a row's amounts are less.
    """
    levels = -(-bits // _DIGIT_BITS)

    def descend(level: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        prefix, beyond = state
        shift = ((levels - 1 - level) * _DIGIT_BITS).astype(jnp.uint32)
        beginnings, digits = keys >> shift, jnp.arange(_HIGHEST, 0, -1, dtype=jnp.uint32)
        parts = [
            jnp.where(beginnings == (prefix << _DIGIT_BITS | digit)[:, None], amounts, 0)
            for digit in digits
        ]
        # One reduction of many operands: one pass.
        sums = jax.lax.reduce(parts, [jnp.int64(0)] * len(parts), _add, (1,))
        running = beyond[:, None] + jnp.cumsum(jnp.stack(sums, axis=1), axis=1)
        passed = (running < limit[:, None]).sum(axis=1)  # digits that do not reach it
        before = jnp.concatenate([beyond[:, None], running], axis=1)
        beyond = jnp.take_along_axis(before, passed[:, None], axis=1)[:, 0]
        return prefix << _DIGIT_BITS | (_HIGHEST - passed).astype(jnp.uint32), beyond

    start = jnp.zeros(len(amounts), jnp.uint32), jnp.zeros(len(amounts), jnp.int64)
    found: tuple[Array, Array] = jax.lax.fori_loop(0, levels, descend, start)
    return found


def _add(first: list[Array], second: list[Array]) -> list[Array]:
    return [a + b for a, b in zip(first, second, strict=True)]


def least_reaching(limit: Array, most: int) -> Array:
    """Return the least integers i64 that are a limit f64 or more, compared as float64.

    They are below `most`. Beyond 2^53 a float64 stands for all integers that are rounded to it.
    """
    least = jnp.ceil(jnp.maximum(limit, 1)).astype(jnp.int64)
    lower = 1 << max(0, most.bit_length() - 54)  # of a number that is rounded up, at most
    below = least[..., None] - jnp.arange(1, lower + 1)
    return least - (below.astype(jnp.float64) >= limit[..., None]).sum(axis=-1)
