"""The last phase of a step: choose a token for every sampled position.

`numba_sampling` does it; here its arrays are found again from the plan's addresses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import typeof, types

from skerry_core.kernels.cpu.numba_sampling import (
    SamplerScratch,
    SamplingArrays,
    SamplingOutput,
    sampler_scratch,
)
from skerry_core.kernels.cpu.plan import PHASES_PER_LAYER, SAMPLE
from skerry_core.kernels.simd.aliases import Record
from skerry_core.kernels.simd.linking import call_by_address
from skerry_core.kernels.simd.memory import array_at
from skerry_core.kernels.simd.numba_math import building_block, kernel
from skerry_core.kernels.simd.targets import Target
from skerry_core.kernels.simd.threads import claim

_I32, _I64, _U64, _F32 = types.int32, types.int64, types.uint64, types.float32


def _vectors(*dtypes: Any) -> list[Any]:
    return [types.Array(dtype, 1, "C") for dtype in dtypes]


_SAMPLING = types.NamedTuple(
    [
        *_vectors(_I64, _U64, _I32, _F32, _F32, _I32, _F32, _F32, _F32, _F32),
        *_vectors(_I32, _I32, _I32, _I32, _I32, _F32, _I32, _I32),
        types.Array(types.uint32, 2, "C"),
    ],
    SamplingArrays,
)
_RESULT = types.NamedTuple(
    [*_vectors(_I32, _F32), types.Array(_I32, 2, "C"), types.Array(_F32, 2, "C")],
    SamplingOutput,
)
SAMPLE_ROW = (types.Array(_F32, 1, "C"), _SAMPLING, _I64, typeof(sampler_scratch(1)), _RESULT)
_call_sample_row = call_by_address(*SAMPLE_ROW)

_NUM_BINS = len(sampler_scratch(1).bin_counts)


@building_block
def _sampling(plan: Record) -> SamplingArrays:
    samples = plan.num_samples
    return SamplingArrays(
        array_at(plan.sampling_positions, (samples,), np.int64),
        array_at(plan.sampling_seeds, (samples,), np.uint64),
        array_at(plan.sampling_choices, (samples,), np.int32),
        array_at(plan.sampling_temperature, (samples,), np.float32),
        array_at(plan.sampling_top_p, (samples,), np.float32),
        array_at(plan.sampling_top_k, (samples,), np.int32),
        array_at(plan.sampling_min_p, (samples,), np.float32),
        array_at(plan.sampling_repetition_penalty, (samples,), np.float32),
        array_at(plan.sampling_frequency_penalty, (samples,), np.float32),
        array_at(plan.sampling_presence_penalty, (samples,), np.float32),
        array_at(plan.sampling_history_start, (samples + 1,), np.int32),
        array_at(plan.sampling_history_ids, (plan.num_history,), np.int32),
        array_at(plan.sampling_history_counts, (plan.num_history,), np.int32),
        array_at(plan.sampling_bias_start, (samples + 1,), np.int32),
        array_at(plan.sampling_bias_ids, (plan.num_biases,), np.int32),
        array_at(plan.sampling_bias_values, (plan.num_biases,), np.float32),
        array_at(plan.sampling_num_logprobs, (samples,), np.int32),
        array_at(plan.sampling_targets, (samples,), np.int32),
        array_at(plan.sampling_allowed, (samples, plan.mask_words), np.uint32),
    )


@building_block
def _result(plan: Record) -> SamplingOutput:
    samples = plan.num_samples
    return SamplingOutput(
        array_at(plan.out_token_ids, (samples,), np.int32),
        array_at(plan.out_logprobs, (samples,), np.float32),
        array_at(plan.out_top_ids, (samples, plan.num_top), np.int32),
        array_at(plan.out_top_logprobs, (samples, plan.num_top), np.float32),
    )


@building_block
def _scratch(plan: Record, thread: Record) -> SamplerScratch:
    vocabulary = plan.vocab_size
    return SamplerScratch(
        array_at(thread.sampler_adjusted, (vocabulary,), np.float32),
        array_at(thread.sampler_exponentials, (vocabulary,), np.float32),
        array_at(thread.sampler_bins, (vocabulary,), np.int16),
        array_at(thread.sampler_order, (vocabulary,), np.int32),
        array_at(thread.sampler_spare_order, (vocabulary,), np.int32),
        array_at(thread.sampler_bin_counts, (_NUM_BINS,), np.int64),
        array_at(thread.sampler_bin_weights, (_NUM_BINS,), np.int64),
        array_at(thread.sampler_digit_starts, (256,), np.int64),
    )


@kernel
def sample(target: Target, plan: Record, thread: Record, layer: int) -> None:
    """Choose a token for every sampled position; threads claim positions one by one."""
    sampling, result, scratch = _sampling(plan), _result(plan), _scratch(plan, thread)
    counter = plan.num_layers * PHASES_PER_LAYER + SAMPLE
    s = claim(plan.counters, counter)
    while s < plan.num_samples:
        at = plan.logits + 4 * s * plan.logits_stride
        logits = array_at(at, (plan.vocab_size,), np.float32)
        _call_sample_row(plan.sample_row, (logits, sampling, s, scratch, result))
        s = claim(plan.counters, counter)
