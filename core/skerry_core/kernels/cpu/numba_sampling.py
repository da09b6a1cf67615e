"""Choosing a token inside the compiled step. `skerry_core.sampling` says what every step means."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import Float32, Int32, SamplingBatch, UInt32
from skerry_core.kernels.cpu.sampling_bins import (
    RUN,
    SamplerScratch,
    fill_bins,
    keep_count,
    keep_weight,
    kept_weight,
    order_key,
    token_at,
    weight_of,
)
from skerry_core.kernels.simd.numba_math import (
    bits_f32,
    building_block,
    exp_f32,
    f32_bits,
    kernel,
    log_f64,
    uniform,
)
from skerry_core.sampling import GREEDY_TEMPERATURE, MAX_LOGIT, WEIGHT_ONE

_NEGATIVE_INF = np.float32(-np.inf)


class SamplingArrays(NamedTuple):
    """A `SamplingBatch` as a kernel takes it; fields as there."""

    samples: NDArray[np.void]
    history_start: Int32
    history_ids: Int32
    history_counts: Int32
    bias_start: Int32
    bias_ids: Int32
    bias_values: Float32
    allowed: UInt32


class SamplingOutput(NamedTuple):
    """What `sample_row` writes; fields as in `StepResult`."""

    token_ids: Int32  # i32[S]
    logprobs: Float32  # f32[S]
    top_ids: Int32  # i32[S, K], K >= each num_logprobs
    top_logprobs: Float32  # f32[S, K]


def sampling_arrays(sampling: SamplingBatch) -> SamplingArrays:
    """Return a batch's arrays as `sample_row` is compiled for: contiguous and typed."""
    fields = (getattr(sampling, name) for name in SamplingArrays._fields)
    return SamplingArrays(*map(np.ascontiguousarray, fields))


@kernel
def sample_row(
    logits: Any,  # f32[V], raw
    sampling: SamplingArrays,
    s: int,  # which sample of the batch
    scratch: SamplerScratch,  # of this thread
    output: SamplingOutput,  # row s is written
) -> None:
    """Choose the token of sample s from its logits. Any thread may do it, in any order."""
    sample = sampling.samples[s]
    token = np.int64(sample.target)
    if token < 0:
        token = _choose(logits, sampling, s, scratch)
    output.token_ids[s] = token
    output.top_ids[s, :] = -1
    output.top_logprobs[s, :] = _NEGATIVE_INF
    if sample.num_logprobs >= 0:
        _write_logprobs(logits, token, np.int64(sample.num_logprobs), s, scratch, output)


@building_block
def _clean(x: Any) -> Any:
    x = x if x > _NEGATIVE_INF else _NEGATIVE_INF
    return x if x < MAX_LOGIT else MAX_LOGIT


@building_block
def _largest(x: Any) -> Any:
    """Return the largest of f32[V] clean logits; by int32 keys, whose maximum LLVM vectorises."""
    best = order_key(_NEGATIVE_INF)
    for i in range(x.shape[0]):
        key = order_key(x[i])
        best = key if key > best else best
    return bits_f32(np.int32(best ^ ((best >> 31) & 0x7FFFFFFF)))


@kernel
def _choose(logits: Any, sampling: SamplingArrays, s: int, scratch: SamplerScratch) -> Any:
    adjusted, sample = scratch.adjusted, sampling.samples[s]
    _adjust(logits, sampling, s, scratch)
    largest = _largest(adjusted)
    if largest == _NEGATIVE_INF:
        return -1
    if sample.temperature < GREEDY_TEMPERATURE:
        return _first_equal(adjusted, largest)
    fill_bins(largest, sample.temperature, sample.min_p, scratch)
    if sample.top_k > 0:
        keep_count(np.int64(sample.top_k), scratch)
    total = kept_weight(scratch)
    if sample.top_p < 1:
        keep_weight(np.float64(sample.top_p) * np.float64(total), scratch)
        total = kept_weight(scratch)
    if total < 1:  # a temperature that is not a number
        return -1
    u = uniform(sample.seed, sample.position, sample.choice)
    return token_at(min(np.int64(u * np.float64(total)), total - 1), scratch)


@kernel
def _adjust(logits: Any, sampling: SamplingArrays, s: int, scratch: SamplerScratch) -> None:
    """Write adjusted logits: penalties, bias, mask and typical_p."""
    adjusted = scratch.adjusted
    for i in range(logits.shape[0]):
        adjusted[i] = _clean(logits[i])

    sample = sampling.samples[s]
    repetition = sample.repetition_penalty
    for h in range(sampling.history_start[s], sampling.history_start[s + 1]):
        token, count = sampling.history_ids[h], sampling.history_counts[h]
        x = adjusted[token]
        x = x / repetition if x > 0 else x * repetition
        x = x - sample.frequency_penalty * np.float32(count)
        x = x - sample.presence_penalty if count > 0 else x
        adjusted[token] = _clean(x)

    for b in range(sampling.bias_start[s], sampling.bias_start[s + 1]):
        token = sampling.bias_ids[b]
        adjusted[token] = _clean(adjusted[token] + sampling.bias_values[b])

    if sampling.allowed.shape[1] > 0:
        for i in range(adjusted.shape[0]):
            if (sampling.allowed[s, i >> 5] >> np.uint32(i & 31)) & np.uint32(1) == 0:
                adjusted[i] = _NEGATIVE_INF

    if sample.typical_p < 1 and sample.temperature >= GREEDY_TEMPERATURE:
        _keep_typical(sample.typical_p, sample.temperature, scratch)


@kernel
def _keep_typical(typical_p: Any, temperature: Any, scratch: SamplerScratch) -> None:
    """Leave out what is far from the mean of x. The distance up to which tokens stay is found by
    halving the range of its bits, which order as distances do."""
    adjusted, exponentials, distances = scratch.adjusted, scratch.exponentials, scratch.spare_order
    largest = _largest(adjusted)
    if largest == _NEGATIVE_INF:
        return
    total = moment = np.int64(0)
    for i in range(adjusted.shape[0]):
        x = (adjusted[i] - largest) / temperature
        exponentials[i] = exp_f32(x)
        weight = weight_of(exponentials[i])
        total += weight
        if weight > 0:
            moment += weight_of(-np.float64(exponentials[i]) * np.float64(x))
    mean = np.float32(-np.float64(moment) / np.float64(total))
    for i in range(adjusted.shape[0]):
        distances[i] = f32_bits(abs((adjusted[i] - largest) / temperature - mean))

    limit = np.float64(typical_p) * np.float64(total)
    least, most = np.int32(0), f32_bits(np.float32(np.inf))
    while least < most:
        middle = np.int32(least + (most - least) // 2)
        near = np.int64(0)
        for i in range(distances.shape[0]):
            near += weight_of(exponentials[i]) if distances[i] <= middle else 0
        if near >= limit:
            most = middle
        else:
            least = np.int32(middle + 1)
    for i in range(adjusted.shape[0]):
        adjusted[i] = adjusted[i] if distances[i] <= most else _NEGATIVE_INF


@kernel
def _first_equal(x: Any, value: Any) -> Any:
    for i in range(x.shape[0]):
        if x[i] == value:
            return i
    return -1


@kernel
def _write_logprobs(
    logits: Any, token: Any, k: Any, s: int, scratch: SamplerScratch, output: SamplingOutput
) -> None:
    """Write the log-softmax of the raw logits, for the chosen token and the k most likely."""
    x = scratch.adjusted
    for i in range(logits.shape[0]):
        x[i] = _clean(logits[i])
    largest = _largest(x)
    for i in range(x.shape[0]):
        scratch.exponentials[i] = exp_f32(x[i] - largest)
    total = np.int64(0)
    for i in range(x.shape[0]):
        total += weight_of(scratch.exponentials[i])
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
    for start in range(k, x.shape[0], RUN):
        run = x[start : start + RUN]
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
