"""Cosines and sines of rotary embeddings, the same bits on every CPU (NumPy's are not)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skerry_core.config import ModelConfig
from skerry_core.kernels.rope import llama3_scaled
from skerry_core.kernels.simd.numba_math import exp_f64, kernel, log_f64, sin_cos_f64

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


def rope_tables(config: ModelConfig) -> tuple[Float32, Float32]:
    """(cosines, sines) f32[max_context, head_dim / 2]."""
    frequencies = np.empty(config.head_dim // 2)
    fill_frequencies(config.rope_theta, frequencies)
    if config.rope_scaling is not None:
        frequencies = llama3_scaled(frequencies, config.rope_scaling)
    cosines = np.empty((config.max_context, len(frequencies)), np.float32)
    sines = np.empty_like(cosines)
    fill_tables(frequencies, cosines, sines)
    return cosines, sines


@kernel
def fill_frequencies(theta: float, frequencies: Float64) -> None:
    """theta^(-i / count), Su et al., 2021."""
    count = frequencies.shape[0]
    for i in range(count):
        frequencies[i] = exp_f64(-(i / count) * log_f64(theta))


@kernel
def fill_tables(frequencies: Float64, cosines: Float32, sines: Float32) -> None:
    for position in range(cosines.shape[0]):
        for i in range(frequencies.shape[0]):
            sine, cosine = sin_cos_f64(position * frequencies[i])
            cosines[position, i], sines[position, i] = cosine, sine
