"""From a weight file to one array per tensor, for runners without weight formats of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from skerry_core.config import ModelConfig
from skerry_core.weights.file import WeightFile, dequantize

Converted = TypeVar("Converted")


def read_decoder(
    path: Path, convert: Callable[[NDArray[np.float32]], Converted]
) -> tuple[ModelConfig, dict[str, Converted], list[str]]:
    """Configuration, tensors by GGUF name (Q and K in halves-rotating order), formats of the file.

    Tensors are dequantised and converted one at a time, so that only one is held in fp32. Raises
    WeightsError on a file that cannot be read.
    """
    tensors, formats = {}, set[str]()
    with WeightFile.open(path) as file:
        for name, tensor in file.tensors.items():
            tensors[name] = convert(dequantize(tensor))
            formats.add(tensor.format)
        return file.config, tensors, sorted(formats)
