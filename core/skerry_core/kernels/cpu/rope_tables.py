"""Cosines and sines of rotary embeddings, the same bits on every CPU (NumPy's are not)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skerry_core.config import RopeConfig
from skerry_core.kernels.rope import scaled
from skerry_core.kernels.simd.numba_math import exp_f64, kernel, log_f64, sin_cos_f64

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


def rope_tables(rope: RopeConfig, rotary_dim: int, positions: int) -> tuple[Float32, Float32]:
    """Return (cosines, sines), f32[positions, rotary_dim / 2]."""
    frequencies = np.empty(rotary_dim // 2)
    fill_frequencies(rope.theta, frequencies)
    cosines = np.empty((positions, len(frequencies)), np.float32)
    sines = np.empty_like(cosines)
    fill_tables(scaled(frequencies, rope), rope.amplitude, cosines, sines)
    return cosines, sines


@kernel
def fill_frequencies(theta: float, frequencies: Float64) -> None:
    """Compute theta^(-i / count), Su et al., 2021."""
    count = frequencies.shape[0]
    for i in range(count):
        frequencies[i] = exp_f64(-(i / count) * log_f64(theta))


@kernel
def fill_tables(frequencies: Float64, amplitude: float, cosines: Float32, sines: Float32) -> None:
    for position in range(cosines.shape[0]):
        for i in range(frequencies.shape[0]):
            sine, cosine = sin_cos_f64(position * frequencies[i])
            cosines[position, i], sines[position, i] = amplitude * cosine, amplitude * sine
