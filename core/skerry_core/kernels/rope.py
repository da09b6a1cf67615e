"""Rotary frequencies of a model (Su et al., 2021), with Llama 3.1's scaling. Plain float64."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from skerry_core.config import ModelConfig, RopeScaling


def rope_frequencies(config: ModelConfig) -> NDArray[np.float64]:
    """Radians per position of each pair of dimensions, f64[head_dim / 2]."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    frequencies = config.rope_theta**-exponents
    if config.rope_scaling is None:
        return frequencies
    return llama3_scaled(frequencies, config.rope_scaling)


def llama3_scaled(frequencies: NDArray[np.float64], scaling: RopeScaling) -> NDArray[np.float64]:
    """Long waves are divided by `factor`, short ones kept, with a ramp between (Llama 3.1)."""
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = np.clip(ramp, 0.0, 1.0)
    scaled: NDArray[np.float64] = frequencies * (keep + (1 - keep) / scaling.factor)
    return scaled
