"""Batches of rows to choose from."""

from typing import Any

import numpy as np
from bench.subjects.samples import samples_of

from skerry_core.batch import SamplingBatch, StepResult
from skerry_core.kernels.cpu.numba_sampling import SamplingOutput, sample_row, sampling_arrays
from skerry_core.kernels.cpu.sampling_bins import sampler_scratch

INF = float("inf")


def batch(num_samples: int = 1, **overrides: Any) -> SamplingBatch:
    """Greedy samples without penalties; an override is one value for all, or an array."""
    return samples_of(num_samples, **({"position": np.arange(num_samples), "seed": 7} | overrides))


def with_history(tokens: dict[int, int], **overrides: Any) -> SamplingBatch:
    """One sample with `tokens`: id to count in the output."""
    return batch(
        history_start=np.array([0, len(tokens)], np.int32),
        history_ids=np.array(list(tokens), np.int32),
        history_counts=np.array(list(tokens.values()), np.int32),
        **overrides,
    )


def compiled(logits: Any, sampling: SamplingBatch) -> StepResult:
    num_samples, vocab_size = logits.shape
    width = max(0, int(sampling.samples["num_logprobs"].max()))
    output = SamplingOutput(
        token_ids=np.empty(num_samples, np.int32),
        logprobs=np.zeros(num_samples, np.float32),
        top_ids=np.empty((num_samples, width), np.int32),
        top_logprobs=np.empty((num_samples, width), np.float32),
    )
    scratch = sampler_scratch(vocab_size)
    for s in range(num_samples):
        sample_row(logits[s], sampling_arrays(sampling), s, scratch, output)
    return StepResult(**output._asdict())
