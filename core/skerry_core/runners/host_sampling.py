"""Sampling on the host for runners that compute logits elsewhere: the CPU engine's own kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from skerry_core import exact_math
from skerry_core.batch import Float32, SamplingBatch, StepResult
from skerry_core.kernels.cpu import numba_sampling, sample_step, sampling_bins
from skerry_core.kernels.cpu.numba_sampling import SamplingOutput, sample_row, sampling_arrays
from skerry_core.kernels.cpu.sampling_bins import sampler_scratch
from skerry_core.kernels.simd import numba_math
from skerry_core.runner import Progress
from skerry_core.runners.kernel_cache import KernelSet, load_kernels
from skerry_core.sampling import GREEDY_TEMPERATURE, MAX_LOGIT, WEIGHT_ONE

SAMPLING_KERNELS = KernelSet(
    name="sampling",
    reference=f"{__name__}:SAMPLING_KERNELS",
    sources=(numba_math, numba_sampling, exact_math, sample_step, sampling_bins),
    constants=(GREEDY_TEMPERATURE, MAX_LOGIT, WEIGHT_ONE),
    kernels=lambda variant: {"sample_row": (sample_row, sample_step.SAMPLE_ROW)},
)
"""Has one variant."""


class HostSampler:
    """Chooses tokens as `skerry_core.sampling` says, bit for bit. Not for two threads at once."""

    def __init__(self, vocab_size: int, cache_dir: Path, progress: Progress) -> None:
        """Compile the kernel, or load it from the cache. Raises CompilationError."""
        load_kernels(SAMPLING_KERNELS, "row", cache_dir, progress)
        self._scratch = sampler_scratch(vocab_size)

    def __call__(self, logits: Float32, sampling: SamplingBatch) -> StepResult:
        """Choose tokens for the S rows of f32[S, V]."""
        count, width = len(logits), max(0, int(sampling.samples["num_logprobs"].max(initial=0)))
        output = SamplingOutput(
            token_ids=np.empty(count, np.int32),
            logprobs=np.zeros(count, np.float32),
            top_ids=np.empty((count, width), np.int32),
            top_logprobs=np.empty((count, width), np.float32),
        )
        arrays = sampling_arrays(sampling)
        for s in range(count):
            sample_row(logits[s], arrays, s, self._scratch, output)
        return StepResult(**output._asdict())
