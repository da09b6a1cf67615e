"""Rotary frequencies (Su et al., 2021), scaled as the model says. Plain float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skerry_core.config import RopeConfig


def rope_frequencies(rope: RopeConfig, rotary_dim: int) -> NDArray[np.float64]:
    """Return the radians per position of each pair of dimensions, f64[rotary_dim / 2]."""
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim
    return scaled(rope.theta**-exponents, rope)


def scaled(frequencies: NDArray[np.float64], rope: RopeConfig) -> NDArray[np.float64]:
    """Return frequencies times their factors, if they have any."""
    return frequencies * np.array(rope.multipliers) if rope.multipliers else frequencies
