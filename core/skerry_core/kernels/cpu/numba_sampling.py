"""Choosing a token inside the compiled step. `skerry_core.sampling` says what every step means.

No full sort. Tokens fall into bins of x = (logit - largest) / temperature, each with its count and
weight. A filter's boundary, or the drawn token, lies in one bin; only that bin is sorted. The
sort is a radix sort, so the worst case (all logits in one bin) costs no more than a few passes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import Float32, Int32, Int64, SamplingBatch, UInt32, UInt64
from skerry_core.kernels.simd.numba_math import (
    bits_f32,
    building_block,
    exp_f32,
    f32_bits,
    f64_bits,
    kernel,
    log_f32,
    log_f64,
    uniform,
)
from skerry_core.sampling import GREEDY_TEMPERATURE, MAX_LOGIT, WEIGHT_ONE

_LOWEST_X = np.float32(-28.5)  # below it a weight rounds to zero: e^-28.5 < 2^-41
_BINS_PER_UNIT = np.float32(32.0)
_NUM_BINS = int(28.5 * 32) + 1
# Tokens that are out fall into bins past the others: several in turn, since an addition to one bin
# would wait for the one before it.
_NUM_OUT_BINS = 8
_RUN = 64  # tokens that are looked at together
_NEGATIVE_INF = np.float32(-np.inf)


class SamplingArrays(NamedTuple):
    """A `SamplingBatch` as a kernel takes it; fields as there."""

    positions: Int64
    seeds: UInt64
    choices: Int32
    temperature: Float32
    top_p: Float32
    top_k: Int32
    min_p: Float32
    repetition_penalty: Float32
    frequency_penalty: Float32
    presence_penalty: Float32
    history_start: Int32
    history_ids: Int32
    history_counts: Int32
    bias_start: Int32
    bias_ids: Int32
    bias_values: Float32
    num_logprobs: Int32
    targets: Int32
    allowed: UInt32  # u32[S, W]; W = 0: all tokens are allowed


class SamplingOutput(NamedTuple):
    """What `sample_row` writes; fields as in `StepResult`."""

    token_ids: Int32  # i32[S]
    logprobs: Float32  # f32[S]
    top_ids: Int32  # i32[S, K], K >= each num_logprobs
    top_logprobs: Float32  # f32[S, K]


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


def sampling_arrays(sampling: SamplingBatch) -> SamplingArrays:
    """The batch's arrays in the form, contiguous and typed, that `sample_row` is compiled for."""
    allowed = sampling.allowed
    if allowed is None:
        allowed = np.empty((len(sampling.seeds), 0), np.uint32)
    fields = {name: getattr(sampling, name) for name in SamplingArrays._fields[:-1]}
    return SamplingArrays(
        **{name: np.ascontiguousarray(array) for name, array in fields.items()},
        allowed=np.ascontiguousarray(allowed),
    )


def sampler_scratch(vocab_size: int) -> SamplerScratch:
    """Working memory for one thread and rows of `vocab_size` logits."""
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


@kernel
def sample_row(
    logits: Any,  # f32[V], raw
    sampling: SamplingArrays,
    s: int,  # which sample of the batch
    scratch: SamplerScratch,  # of this thread
    output: SamplingOutput,  # row s is written
) -> None:
    """Choose the token of sample s from its logits. Any thread may do it, in any order."""
    token = np.int64(sampling.targets[s])
    if token < 0:
        token = _choose(logits, sampling, s, scratch)
    output.token_ids[s] = token
    output.top_ids[s, :] = -1
    output.top_logprobs[s, :] = _NEGATIVE_INF
    if sampling.num_logprobs[s] >= 0:
        _write_logprobs(logits, token, np.int64(sampling.num_logprobs[s]), s, scratch, output)


@building_block
def _clean(x: Any) -> Any:
    x = x if x > _NEGATIVE_INF else _NEGATIVE_INF
    return x if x < MAX_LOGIT else MAX_LOGIT


@building_block
def _order_key(x: Any) -> Any:
    """int32 that orders as the float32 does; -0 and 0 are equal."""
    bits = f32_bits(x + np.float32(0.0))
    return np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))


@building_block
def _largest(x: Any) -> Any:
    """The largest of f32[V] clean logits; through int32 keys, whose maximum LLVM vectorises."""
    best = _order_key(_NEGATIVE_INF)
    for i in range(x.shape[0]):
        key = _order_key(x[i])
        best = key if key > best else best
    return bits_f32(np.int32(best ^ ((best >> 31) & 0x7FFFFFFF)))


@building_block
def _weight(e: Any) -> Any:
    """e in [0, 1] in fixed point, rounded to even: the lowest 40 bits of 1.5 * 2^12 + e."""
    return f64_bits(np.float64(e) + 6144.0) - f64_bits(6144.0)


@kernel
def _choose(logits: Any, sampling: SamplingArrays, s: int, scratch: SamplerScratch) -> Any:
    adjusted = scratch.adjusted
    _adjust(logits, sampling, s, adjusted)
    largest = _largest(adjusted)
    if largest == _NEGATIVE_INF:
        return -1
    if sampling.temperature[s] < GREEDY_TEMPERATURE:
        return _first_equal(adjusted, largest)
    _fill_bins(largest, sampling.temperature[s], sampling.min_p[s], scratch)
    if sampling.top_k[s] > 0:
        _keep_count(np.int64(sampling.top_k[s]), scratch)
    total = _kept_weight(scratch)
    if sampling.top_p[s] < 1:
        _keep_weight(np.float64(sampling.top_p[s]) * np.float64(total), scratch)
        total = _kept_weight(scratch)
    if total < 1:  # a temperature that is not a number
        return -1
    u = uniform(sampling.seeds[s], sampling.positions[s], sampling.choices[s])
    return _token_at(min(np.int64(u * np.float64(total)), total - 1), scratch)


@kernel
def _adjust(logits: Any, sampling: SamplingArrays, s: int, adjusted: Any) -> None:
    """Penalties, bias and mask."""
    for i in range(logits.shape[0]):
        adjusted[i] = _clean(logits[i])

    repetition = sampling.repetition_penalty[s]
    for h in range(sampling.history_start[s], sampling.history_start[s + 1]):
        token, count = sampling.history_ids[h], sampling.history_counts[h]
        x = adjusted[token]
        x = x / repetition if x > 0 else x * repetition
        x = x - sampling.frequency_penalty[s] * np.float32(count)
        x = x - sampling.presence_penalty[s] if count > 0 else x
        adjusted[token] = _clean(x)

    for b in range(sampling.bias_start[s], sampling.bias_start[s + 1]):
        token = sampling.bias_ids[b]
        adjusted[token] = _clean(adjusted[token] + sampling.bias_values[b])

    if sampling.allowed.shape[1] > 0:
        for i in range(adjusted.shape[0]):
            if (sampling.allowed[s, i >> 5] >> np.uint32(i & 31)) & np.uint32(1) == 0:
                adjusted[i] = _NEGATIVE_INF


@kernel
def _first_equal(x: Any, value: Any) -> Any:
    for i in range(x.shape[0]):
        if x[i] == value:
            return i
    return -1


@kernel
def _fill_bins(largest: Any, temperature: Any, min_p: Any, scratch: SamplerScratch) -> None:
    """Bin and e^x of every token; weight of every bin."""
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
        scratch.bin_weights[scratch.bins[i]] += _weight(scratch.exponentials[i])


@kernel
def _kept_weight(scratch: SamplerScratch) -> Any:
    total = np.int64(0)
    for b in range(_NUM_BINS):
        total += scratch.bin_weights[b]
    return total


@kernel
def _keep_count(count: Any, scratch: SamplerScratch) -> None:
    """Keep the first tokens, `count` of them."""
    scratch.bin_counts[:] = 0
    for i in range(scratch.bins.shape[0]):
        scratch.bin_counts[scratch.bins[i]] += 1
    for b in range(_NUM_BINS):
        if scratch.bin_counts[b] >= count:
            order = _sorted_bin(b, scratch)
            weight = np.int64(0)
            for rank in range(count):
                weight += _weight(scratch.exponentials[order[rank]])
            _cut(b, weight, scratch)
            return
        count -= scratch.bin_counts[b]


@kernel
def _keep_weight(limit: Any, scratch: SamplerScratch) -> None:
    """Keep the shortest prefix that is not empty and weighs at least `limit`."""
    before = np.int64(0)
    for b in range(_NUM_BINS):
        if scratch.bin_weights[b] > 0 and before + scratch.bin_weights[b] >= limit:
            order = _sorted_bin(b, scratch)
            weight = _weight(scratch.exponentials[order[0]])
            rank = 1
            while before + weight < limit:
                weight += _weight(scratch.exponentials[order[rank]])
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
def _token_at(drawn: Any, scratch: SamplerScratch) -> Any:
    """The token where the running sum of kept weights first exceeds `drawn`."""
    b = 0
    while drawn >= scratch.bin_weights[b]:
        drawn -= scratch.bin_weights[b]
        b += 1
    order = _sorted_bin(b, scratch)
    rank = 0
    weight = _weight(scratch.exponentials[order[0]])
    while drawn >= weight:
        drawn -= weight
        rank += 1
        weight = _weight(scratch.exponentials[order[rank]])
    return np.int64(order[rank])


@kernel
def _sorted_bin(b: Any, scratch: SamplerScratch) -> Any:
    """Tokens of bin b, those cut off included, by (logit descending, id ascending).

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
    for start in range(0, bins.shape[0], _RUN):
        run = bins[start : start + _RUN]
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
    """A byte of the key by which larger logits come first."""
    return ((0x7FFFFFFF - np.int64(_order_key(x))) >> shift) & 0xFF


@kernel
def _write_logprobs(
    logits: Any, token: Any, k: Any, s: int, scratch: SamplerScratch, output: SamplingOutput
) -> None:
    """Log-softmax of the raw logits, for the chosen token and the k most likely."""
    x = scratch.adjusted
    for i in range(logits.shape[0]):
        x[i] = _clean(logits[i])
    largest = _largest(x)
    for i in range(x.shape[0]):
        scratch.exponentials[i] = exp_f32(x[i] - largest)
    total = np.int64(0)
    for i in range(x.shape[0]):
        total += _weight(scratch.exponentials[i])
    log_total = log_f64(np.float64(total) / WEIGHT_ONE)

    output.logprobs[s] = _logprob(x[token], largest, log_total) if token >= 0 else _NEGATIVE_INF
    ids = output.top_ids[s]
    for rank in range(_most_likely(x, k, ids)):
        output.top_logprobs[s, rank] = _logprob(x[ids[rank]], largest, log_total)


@building_block
def _logprob(x: Any, largest: Any, log_total: Any) -> Any:
    if largest == _NEGATIVE_INF:
        return _NEGATIVE_INF
    return np.float32((np.float64(x) - np.float64(largest)) - log_total)


@kernel
def _most_likely(x: Any, k: Any, ids: Any) -> Any:
    """Write up to k ids by (logit descending, id ascending); returns how many."""
    k = min(k, x.shape[0])
    if k == 0:
        return k
    for i in range(k):
        _insert(x, i, i, ids)
    least = x[ids[k - 1]]
    for start in range(k, x.shape[0], _RUN):
        run = x[start : start + _RUN]
        found = np.int32(0)
        for i in range(run.shape[0]):
            found |= np.int32(run[i] > least)
        if found:
            for i in range(run.shape[0]):
                if run[i] > least:
                    _insert(x, start + i, k - 1, ids)
                    least = x[ids[k - 1]]
    return k


@building_block
def _insert(x: Any, token: Any, rank: Any, ids: Any) -> None:
    """Put a token at `rank`, or before if likelier: those it passes move down, the last is lost."""
    while rank > 0 and x[ids[rank - 1]] < x[token]:
        ids[rank] = ids[rank - 1]
        rank -= 1
    ids[rank] = token
