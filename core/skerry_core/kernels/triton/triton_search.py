"""What is asked of some logits of a row, by one program: the weights, counts and bounds of those
that have a key or a larger one. See `triton_sampling`.
"""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from skerry_core.kernels.triton.triton_math import exp_f32, halvings, sortable
from skerry_core.sampling import WEIGHT_ONE

_WEIGHT_ONE: tl.constexpr = tl.constexpr(float(WEIGHT_ONE))
_TO_INTEGER: tl.constexpr = tl.constexpr(1.5 * 2.0**52)  # adding it rounds, ties to even


@triton.jit
def bins_of(logits, is_token, largest, temperature, lowest, BINS: tl.constexpr):
    """Return the bins of logits; the last one is of those that min_p leaves out."""
    x = tl.div_rn(logits - largest, tl.zeros_like(logits) + temperature)
    return tl.where(is_token & (x >= lowest), tl.minimum(halvings(x) // 2, BINS - 2), BINS - 1)


@triton.jit
def weights_of(logits, largest, temperature):
    """Return fixed-point weights i64 of logits, as `sampling.weights`."""
    e = exp_f32(tl.div_rn(logits - largest, tl.zeros_like(logits) + temperature))
    return ((e.to(tl.float64) * _WEIGHT_ONE + _TO_INTEGER) - _TO_INTEGER).to(tl.int64)


@triton.jit
def logit_of(key):
    """Return the logit that has a key of `sortable`."""
    bits = (tl.full([1], 0, tl.int64) + key).to(tl.int32)
    logit = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)
    return tl.max(logit, axis=0)


@triton.jit
def weight_of(key, largest, temperature):
    """Return the weight of a logit that has this key."""
    logit = tl.full([1], 0.0, tl.float32) + logit_of(key)
    return tl.max(weights_of(logit, largest, temperature), axis=0)


@triton.jit
def _chunk(logits, size, start, CHUNK: tl.constexpr):
    """Load (places, logits, keys i64, which are real) of up to CHUNK tokens."""
    places = start + tl.arange(0, CHUNK)
    is_token = places < size
    x = tl.load(logits + places, mask=is_token, other=float("-inf"))
    return places, x, sortable(x).to(tl.int64), is_token


@triton.jit
def bounds_of(logits, size, CHUNK: tl.constexpr):
    """Return the least key of some tokens, and one more than the largest."""
    least = tl.full([CHUNK], 0x7FFFFFFF, tl.int64)
    most = tl.full([CHUNK], -0x80000000, tl.int64)
    for start in range(0, size, CHUNK):
        _, _, keys, is_token = _chunk(logits, size, start, CHUNK)
        least = tl.minimum(least, tl.where(is_token, keys, 0x7FFFFFFF))
        most = tl.maximum(most, tl.where(is_token, keys, -0x80000000))
    return tl.min(least, axis=0), tl.max(most, axis=0) + 1


@triton.jit
def weigh(logits, size, largest, temperature, weights, CHUNK: tl.constexpr):
    """Write the weights of some tokens, for `mass_from`."""
    for start in range(0, size, CHUNK):
        places, x, _, is_token = _chunk(logits, size, start, CHUNK)
        tl.store(weights + places, weights_of(x, largest, temperature), mask=is_token)
    tl.debug_barrier()  # other threads may load them


@triton.jit
def mass_from(logits, weights, size, is_weighed, largest, temperature, key, CHUNK: tl.constexpr):
    """Sum the weights of the tokens whose key is `key` or more, as written if they were weighed."""
    total = tl.zeros([CHUNK], tl.int64)
    for start in range(0, size, CHUNK):
        places, x, keys, is_token = _chunk(logits, size, start, CHUNK)
        is_counted = is_token & (keys >= key)
        if is_weighed:
            total += tl.load(weights + places, mask=is_counted, other=0)
        else:
            total += tl.where(is_counted, weights_of(x, largest, temperature), 0)
    return tl.sum(total, axis=0)


@triton.jit
def count_from(logits, size, key, CHUNK: tl.constexpr):
    """Count the tokens whose key is `key` or more."""
    total = tl.zeros([CHUNK], tl.int32)
    for start in range(0, size, CHUNK):
        _, _, keys, is_token = _chunk(logits, size, start, CHUNK)
        total += (is_token & (keys >= key)).to(tl.int32)
    return tl.sum(total, axis=0).to(tl.int64)


@triton.jit
def token_at(logits, names, size, is_named, key, rank, CHUNK: tl.constexpr):
    """Return the id of the token number `rank`, counted from 0, among those of one key: what
    `names` says of its place, or the place itself."""
    token, seen = -1, tl.zeros([], tl.int32)
    for start in range(0, size, CHUNK):
        places, _, keys, is_token = _chunk(logits, size, start, CHUNK)
        is_tie = is_token & (keys == key)
        order = seen + tl.cumsum(is_tie.to(tl.int32), axis=0) - 1
        place = tl.where(is_tie & (order == rank), places, -1)
        token = tl.maximum(token, tl.max(place, axis=0).to(tl.int32))
        seen += tl.sum(is_tie.to(tl.int32), axis=0)
    if is_named:
        token = tl.load(names + token)
    return token


@triton.jit
def uniform(seed, position, choice):
    """Compute `exact_math.uniform`: Philox4x32-10 of (position, choice), keyed by the seed."""
    low, high = (position & 0xFFFFFFFF).to(tl.uint32), (position >> 32).to(tl.uint32)
    zero = tl.zeros_like(low)
    w0, w1, _, _ = tl.philox(seed, low, high, choice.to(tl.uint32), zero)
    bits = (w0.to(tl.int64) << 20) | (w1 >> 12).to(tl.int64)
    return (bits.to(tl.float64) + 0.5) * 2.220446049250313e-16  # 2^-52


@triton.jit
def least_share(top_p, total):
    """Return the least integer that, as a float64, is `top_p` of a total or more, and 1 or more."""
    limit = tl.maximum(top_p * total.to(tl.float64), 1.0)
    least = tl.ceil(limit).to(tl.int64)
    while (least - 1).to(tl.float64) >= limit:
        least -= 1
    return least


@triton.jit
def wanted_bin(
    row, running_counts, running_masses, limit, IS_COUNT: tl.constexpr, BINS: tl.constexpr
):
    """Return the bin in which a limit falls, its tokens, how many come before, and their weight."""
    b = tl.arange(0, BINS)
    counts = tl.load(running_counts + row * BINS + b)
    masses = tl.load(running_masses + row * BINS + b)
    running = counts if IS_COUNT else masses
    wanted = tl.sum((running < limit).to(tl.int32), axis=0)
    before = tl.sum(tl.where(b == wanted - 1, counts, 0), axis=0)
    above = tl.sum(tl.where(b == wanted - 1, masses, 0), axis=0)
    return wanted, tl.sum(tl.where(b == wanted, counts, 0), axis=0) - before, before, above
