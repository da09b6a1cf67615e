"""From a weight file to one array per tensor, for runners without weight formats of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from skerry_core.config import BackEnd, ModelConfig
from skerry_core.models.sharding import Shard
from skerry_core.models.weight_file import WeightFile
from skerry_core.weights.tensors import dequantize

Converted = TypeVar("Converted")


def read_decoder(
    path: Path, convert: Callable[[NDArray[np.float32]], Converted], back_end: BackEnd,
    *, shard: Shard | None = None,
) -> tuple[ModelConfig, dict[str, Converted], list[str]]:  # fmt: skip
    """Return configuration, tensors by our names, and the formats that the file has them in; with a
    shard only what a rank has.

    Tensors are dequantised and converted one at a time, so that only one is held in fp32. Raises
    WeightsError on a file that cannot be read, ConfigError for what a back end does not have.
    """
    tensors, formats = {}, set[str]()
    with WeightFile.open(path, shard=shard) as file:
        file.config.check_features(back_end)
        for name, tensor in file.tensors.items():
            tensors[name] = convert(dequantize(tensor))
            formats.add(tensor.format)
        return file.config, tensors, sorted(formats)
