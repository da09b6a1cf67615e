"""Batches of samples by hand: greedy and unchanged but for the fields given."""

from __future__ import annotations

from typing import Any

import numpy as np

from skerry_core.batch import SamplingBatch
from skerry_core.sampling import PARAMETERS, SAMPLE


def samples_of(count: int, **fields: Any) -> SamplingBatch:
    """Return a batch of so many samples.

    A field of `SAMPLE` is one value for all, or one for each; others are arrays of the batch.
    """
    assert SAMPLE.names is not None
    samples = np.zeros(count, SAMPLE)
    off = {name: parameter.off for name, parameter in PARAMETERS.items()}
    for name, value in ({"num_logprobs": -1, "target": -1} | off | fields).items():
        if name in SAMPLE.names:
            samples[name] = value
    nothing: dict[str, Any] = {
        "history_start": np.zeros(count + 1, np.int32),
        "history_ids": np.zeros(0, np.int32),
        "history_counts": np.zeros(0, np.int32),
        "bias_start": np.zeros(count + 1, np.int32),
        "bias_ids": np.zeros(0, np.int32),
        "bias_values": np.zeros(0, np.float32),
        "allowed": np.zeros((count, 0), np.uint32),
    }
    lists = {name: value for name, value in fields.items() if name not in SAMPLE.names}
    return SamplingBatch(samples=samples, **(nothing | lists))
