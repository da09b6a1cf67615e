"""The last phase of a step: choose a token for every sampled position.

`numba_sampling` does it; here its arrays are found again from the step's addresses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import from_dtype, typeof, types

from skerry_core.kernels.cpu.numba_sampling import SamplingArrays, SamplingOutput
from skerry_core.kernels.cpu.sampling_bins import SamplerScratch, sampler_scratch
from skerry_core.kernels.cpu.step_records import PHASES_PER_LAYER, SAMPLE
from skerry_core.kernels.simd.aliases import Record
from skerry_core.kernels.simd.linking import call_by_address
from skerry_core.kernels.simd.memory import array_at
from skerry_core.kernels.simd.numba_math import building_block, kernel
from skerry_core.kernels.simd.targets import Target
from skerry_core.kernels.simd.threads import claim
from skerry_core.sampling import SAMPLE as SAMPLE_TYPE

_I32, _I64, _F32 = types.int32, types.int64, types.float32


def _vectors(*dtypes: Any) -> list[Any]:
    return [types.Array(dtype, 1, "C") for dtype in dtypes]


_SAMPLING = types.NamedTuple(
    [
        types.Array(from_dtype(SAMPLE_TYPE), 1, "C"),
        *_vectors(_I32, _I32, _I32, _I32, _I32, _F32),
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
def _sampling(step: Record) -> SamplingArrays:
    samples = step.num_samples
    return SamplingArrays(
        array_at(step.sampling_samples, (samples,), SAMPLE_TYPE),
        array_at(step.sampling_history_start, (samples + 1,), np.int32),
        array_at(step.sampling_history_ids, (step.num_history,), np.int32),
        array_at(step.sampling_history_counts, (step.num_history,), np.int32),
        array_at(step.sampling_bias_start, (samples + 1,), np.int32),
        array_at(step.sampling_bias_ids, (step.num_biases,), np.int32),
        array_at(step.sampling_bias_values, (step.num_biases,), np.float32),
        array_at(step.sampling_allowed, (samples, step.mask_words), np.uint32),
    )


@building_block
def _result(step: Record) -> SamplingOutput:
    samples = step.num_samples
    return SamplingOutput(
        array_at(step.out_token_ids, (samples,), np.int32),
        array_at(step.out_logprobs, (samples,), np.float32),
        array_at(step.out_top_ids, (samples, step.num_top), np.int32),
        array_at(step.out_top_logprobs, (samples, step.num_top), np.float32),
    )


@building_block
def _scratch(step: Record, thread: Record) -> SamplerScratch:
    vocabulary = step.vocab_size
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
def sample(target: Target, step: Record, thread: Record, layer: int) -> None:
    """Choose a token for every sampled position; threads claim positions one by one."""
    sampling, result, scratch = _sampling(step), _result(step), _scratch(step, thread)
    counter = step.num_layers * PHASES_PER_LAYER + SAMPLE
    s = claim(step.counters, counter)
    while s < step.num_samples:
        at = step.logits + 4 * s * step.logits_stride
        logits = array_at(at, (step.vocab_size,), np.float32)
        _call_sample_row(step.sample_row, (logits, sampling, s, scratch, result))
        s = claim(step.counters, counter)
