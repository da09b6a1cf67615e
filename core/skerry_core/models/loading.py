"""From a weight file to plain fp32 arrays, for runners without weight formats of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skerry_core.config import ModelConfig
from skerry_core.weights import WeightFile, dequantize


def decoder_tensors(path: Path) -> tuple[ModelConfig, dict[str, NDArray[np.float32]], str]:
    """Configuration, tensors by GGUF name (Q and K in halves-rotating order), digest of the file.

    Raises WeightsError on a file that cannot be read.
    """
    with WeightFile.open(path) as file:
        return file.config, dict(_dequantized(file)), file.digest


def _dequantized(file: WeightFile) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for name, tensor in file.tensors.items():
        yield name, dequantize(tensor)
