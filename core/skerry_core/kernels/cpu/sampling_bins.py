"""The order of tokens by likelihood, without a full sort.

Tokens fall into bins of x = (logit - largest) / temperature, each with its count and weight. A
filter's boundary, or the drawn token, lies in one bin; only that bin is sorted. The sort is a radix
sort, so the worst case (all logits in one bin) costs no more than a few passes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import Float32, Int32, Int64
from skerry_core.kernels.simd.numba_math import (
    building_block,
    exp_f32,
    f32_bits,
    f64_bits,
    kernel,
    log_f32,
)

_LOWEST_X = np.float32(-28.5)  # below it a weight rounds to zero: e^-28.5 < 2^-41
_BINS_PER_UNIT = np.float32(32.0)
_NUM_BINS = int(28.5 * 32) + 1
# Tokens that are out fall into bins past the others: several in turn, since an addition to one bin
# would wait for the one before it.
_NUM_OUT_BINS = 8
RUN = 64  # tokens that are looked at together


class SamplerScratch(NamedTuple):
    """Working memory of one thread. `order` is the sorted bin; the rest is named by its users."""

    adjusted: Float32  # f32[V]
    exponentials: Float32  # f32[V]
    bins: NDArray[np.int16]  # i16[V]
    order: Int32  # i32[V]
    spare_order: Int32  # i32[V]
    bin_counts: Int64  # i64[bins]
    bin_weights: Int64  # i64[bins]
    digit_starts: Int64  # i64[256]


def sampler_scratch(vocab_size: int) -> SamplerScratch:
    """Allocate working memory for one thread and rows of `vocab_size` logits."""
    return SamplerScratch(
        adjusted=np.empty(vocab_size, np.float32),
        exponentials=np.empty(vocab_size, np.float32),
        bins=np.empty(vocab_size, np.int16),
        order=np.empty(vocab_size, np.int32),
        spare_order=np.empty(vocab_size, np.int32),
        bin_counts=np.empty(_NUM_BINS + _NUM_OUT_BINS, np.int64),
        bin_weights=np.empty(_NUM_BINS + _NUM_OUT_BINS, np.int64),
        digit_starts=np.empty(256, np.int64),
    )


@building_block
def order_key(x: Any) -> Any:
    """Return an int32 that orders as the float32 does; -0 and 0 are equal."""
    bits = f32_bits(x + np.float32(0.0))
    return np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))


@building_block
def weight_of(e: Any) -> Any:
    """Return e in [0, 1] in fixed point, rounded to even: the lowest 40 bits of 1.5 * 2^12 + e."""
    return f64_bits(np.float64(e) + 6144.0) - f64_bits(6144.0)


@kernel
def fill_bins(largest: Any, temperature: Any, min_p: Any, scratch: SamplerScratch) -> None:
    """Compute bin and e^x of every token, and the weight of every bin."""
    lowest = _LOWEST_X
    if min_p > 0:
        lowest = max(lowest, min(log_f32(min_p), np.float32(0.0)))
    for i in range(scratch.adjusted.shape[0]):
        x = (scratch.adjusted[i] - largest) / temperature
        clipped = x if x > _LOWEST_X else _LOWEST_X
        bin_ = np.int32(clipped * -_BINS_PER_UNIT)
        scratch.bins[i] = bin_ if x >= lowest else np.int32(_NUM_BINS + i % _NUM_OUT_BINS)
        scratch.exponentials[i] = exp_f32(x)

    scratch.bin_weights[:] = 0
    for i in range(scratch.bins.shape[0]):
        scratch.bin_weights[scratch.bins[i]] += weight_of(scratch.exponentials[i])


@kernel
def kept_weight(scratch: SamplerScratch) -> Any:
    total = np.int64(0)
    for b in range(_NUM_BINS):
        total += scratch.bin_weights[b]
    return total


@kernel
def keep_count(count: Any, scratch: SamplerScratch) -> None:
    """Keep the first tokens, `count` of them."""
    scratch.bin_counts[:] = 0
    for i in range(scratch.bins.shape[0]):
        scratch.bin_counts[scratch.bins[i]] += 1
    for b in range(_NUM_BINS):
        if scratch.bin_counts[b] >= count:
            order = _sorted_bin(b, scratch)
            weight = np.int64(0)
            for rank in range(count):
                weight += weight_of(scratch.exponentials[order[rank]])
            _cut(b, weight, scratch)
            return
        count -= scratch.bin_counts[b]


@kernel
def keep_weight(limit: Any, scratch: SamplerScratch) -> None:
    """Keep the shortest prefix that is not empty and weighs at least `limit`."""
    before = np.int64(0)
    for b in range(_NUM_BINS):
        if scratch.bin_weights[b] > 0 and before + scratch.bin_weights[b] >= limit:
            order = _sorted_bin(b, scratch)
            weight = weight_of(scratch.exponentials[order[0]])
            rank = 1
            while before + weight < limit:
                weight += weight_of(scratch.exponentials[order[rank]])
                rank += 1
            _cut(b, weight, scratch)
            return
        before += scratch.bin_weights[b]


@building_block
def _cut(b: Any, weight: Any, scratch: SamplerScratch) -> None:
    """End the kept prefix inside bin b, whose tokens before the end weigh `weight`."""
    scratch.bin_weights[b] = weight
    scratch.bin_weights[b + 1 :] = 0


@kernel
def token_at(drawn: Any, scratch: SamplerScratch) -> Any:
    """Return the token where the running sum of kept weights first exceeds `drawn`."""
    b = 0
    while drawn >= scratch.bin_weights[b]:
        drawn -= scratch.bin_weights[b]
        b += 1
    order = _sorted_bin(b, scratch)
    rank = 0
    weight = weight_of(scratch.exponentials[order[0]])
    while drawn >= weight:
        drawn -= weight
        rank += 1
        weight = weight_of(scratch.exponentials[order[rank]])
    return np.int64(order[rank])


@kernel
def _sorted_bin(b: Any, scratch: SamplerScratch) -> Any:
    """Sort tokens of bin b, those cut off included, by (logit descending, id ascending).

    A stable radix sort, bytes from low to high; a byte that all tokens share is skipped. The array
    is one of the scratch, valid until the next call.
    """
    order, spare = scratch.order, scratch.spare_order
    n = _gather_bin(b, scratch.bins, order)
    starts = scratch.digit_starts
    for shift in (0, 8, 16, 24):
        starts[:] = 0
        for rank in range(n):
            starts[_digit(scratch.adjusted[order[rank]], shift)] += 1
        if n == 0 or starts[_digit(scratch.adjusted[order[0]], shift)] == n:
            continue
        start = 0
        for digit in range(256):
            start, starts[digit] = start + starts[digit], start
        for rank in range(n):
            digit = _digit(scratch.adjusted[order[rank]], shift)
            spare[starts[digit]] = order[rank]
            starts[digit] += 1
        order, spare = spare, order
    return order


@kernel
def _gather_bin(b: Any, bins: Any, order: Any) -> Any:
    """Write the tokens of bin b in ascending order; returns how many. Skips runs without any."""
    n = 0
    for start in range(0, bins.shape[0], RUN):
        run = bins[start : start + RUN]
        found = np.int16(0)
        for i in range(run.shape[0]):
            found |= np.int16(run[i] == b)
        if found:
            for i in range(run.shape[0]):
                order[n] = start + i
                n += run[i] == b
    return n


@building_block
def _digit(x: Any, shift: Any) -> Any:
    """Return a byte of the key by which larger logits come first."""
    return ((0x7FFFFFFF - np.int64(order_key(x))) >> shift) & 0xFF
