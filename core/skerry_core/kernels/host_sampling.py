"""Sampling on the host for runners that compute logits elsewhere: the numba kernel, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from skerry_core.batch import Float32, SamplingBatch, StepResult
from skerry_core.kernels.numba_math import kernel
from skerry_core.kernels.numba_sampling import (
    SamplingOutput,
    sample_row,
    sampler_scratch,
    sampling_arrays,
)


class HostSampler:
    """Chooses tokens as `skerry_core.sampling` says, bit for bit. Not for two threads at once."""

    def __init__(self, vocab_size: int) -> None:
        self._scratch = sampler_scratch(vocab_size)

    def __call__(self, logits: Float32, sampling: SamplingBatch) -> StepResult:
        """Tokens for the S rows of f32[S, V]."""
        count, width = len(logits), max(0, int(sampling.num_logprobs.max(initial=0)))
        output = SamplingOutput(
            token_ids=np.empty(count, np.int32),
            logprobs=np.zeros(count, np.float32),
            top_ids=np.empty((count, width), np.int32),
            top_logprobs=np.empty((count, width), np.float32),
        )
        _sample_rows(logits, sampling_arrays(sampling), self._scratch, output)
        return StepResult(**output._asdict())


@kernel
def _sample_rows(logits: Any, sampling: Any, scratch: Any, output: Any) -> None:
    for s in range(logits.shape[0]):
        sample_row(logits[s], sampling, s, scratch, output)
