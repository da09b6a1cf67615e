"""A classification head on one state: a dense layer, tanh or a ReLU, and one score per class.

All in double and in one order, so that the scores have the same bits on every CPU. It is a sliver
of the encoder's work, so it is written for that and not for speed.
"""

from __future__ import annotations

import numpy as np
from numba import types

from skerry_core.kernels.simd.aliases import Float32
from skerry_core.kernels.simd.numba_math import exp_f64, kernel

_SATURATED = 20.0  # beyond it tanh is 1 in double precision


@kernel
def classify(
    state: Float32,  # f32[hidden]
    dense: Float32,  # f32[hidden, hidden]
    dense_bias: Float32,  # f32[hidden]
    rectifies: bool,  # a ReLU; else tanh
    out: Float32,  # f32[classes, hidden]
    out_bias: Float32,  # f32[classes]
    scores: Float32,  # f32[classes], written
) -> None:
    """Compute the classes' scores, before softmax or sigmoid."""
    size = state.shape[0]
    inner = np.empty(size, np.float64)
    for i in range(size):
        total = np.float64(dense_bias[i])
        for j in range(size):
            total += np.float64(dense[i, j]) * np.float64(state[j])
        inner[i] = max(total, 0.0) if rectifies else tanh(total)
    for i in range(out.shape[0]):
        total = np.float64(out_bias[i])
        for j in range(size):
            total += np.float64(out[i, j]) * inner[j]
        scores[i] = np.float32(total)


@kernel
def tanh(x: float) -> float:
    """Return tanh within 1e-15, the same bits on every CPU."""
    decay = exp_f64(-2.0 * min(abs(x), _SATURATED))
    y = (1.0 - decay) / (1.0 + decay)
    return y if x >= 0.0 else -y


_F32_ROW = types.Array(types.float32, 1, "C")
_F32_ROWS = types.Array(types.float32, 2, "C")
CLASSIFY = (_F32_ROW, _F32_ROWS, _F32_ROW, types.boolean, _F32_ROWS, _F32_ROW, _F32_ROW)
