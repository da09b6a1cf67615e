"""From a weight file to tensors on a Torch device.

To a GPU the mapped file is streamed as it is, and the device makes values of the bytes. So the page
cache, the copies and the bus work at the same time, and the host never holds a dequantised tensor.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from skerry_core.config import ModelConfig
from skerry_core.kernels.torch.quantized import (
    FORMATS,
    Matrix,
    NarrowWeights,
    in_fewer_bits,
    unpack,
)
from skerry_core.kernels.torch.torch_staging import Streamer
from skerry_core.models.loading import read_decoder
from skerry_core.models.sharding import Shard
from skerry_core.models.tensor_names import EMBEDDING, HEAD
from skerry_core.models.weight_file import WeightFile
from skerry_core.weights.tensors import FileTensor, Float32, dequantize

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def load_decoder(
    path: Path,
    device: torch.device,
    dtype: torch.dtype,
    *,
    keeps_quantized: bool,
    narrow: NarrowWeights | None = None,
    shard: Shard | None = None,
) -> tuple[ModelConfig, dict[str, Matrix], list[str]]:
    """Load a file; return configuration, tensors by our names, and the formats they had.

    With a shard that is what a rank has of the model: no more is read, or brought to the device.
    With `narrow` matrices of floats are narrowed on the device, one by one; it needs
    `keeps_quantized`. Raises WeightsError on a file that cannot be read,
    ConfigError for a model that Torch cannot run.
    """
    if device.type == "cpu" and not keeps_quantized:

        def convert(array: Float32) -> Matrix:
            return torch.from_numpy(array).to(dtype)

        return read_decoder(path, convert, "torch", shard=shard)
    tensors: dict[str, Matrix] = {}
    formats = set[str]()
    with WeightFile.open(path, shard=shard) as file, closing(Streamer(device)) as stream:
        file.config.check_features("triton" if keeps_quantized else "torch")
        for name, tensor in file.tensors.items():
            # Its rows are looked up, so it is kept as floats.
            is_embedding = name == EMBEDDING
            matrix = _tensor(
                stream, tensor, dtype, keeps_quantized=keeps_quantized and not is_embedding
            )
            tensors[name] = matrix if is_embedding else _narrowed(matrix, narrow)
            formats.add(tensor.format)
        is_same = file.config.tied_embeddings and (
            shard is None or (shard.stage.is_first and shard.stage.is_last)
        )
        if is_same and keeps_quantized:
            head = _tensor(stream, file.tensors[EMBEDDING], dtype, keeps_quantized=True)
            head = _narrowed(head, narrow)
            if not isinstance(head, Tensor):  # its floats are read where tokens come in
                tensors[HEAD] = head
        if narrow is not None:
            formats.add(narrow)
        return file.config, tensors, sorted(formats)


def _tensor(
    stream: Streamer, tensor: FileTensor, dtype: torch.dtype, *, keeps_quantized: bool
) -> Matrix:
    """Load one tensor to the device, of `dtype` or quantised."""
    if tensor.format in _FLOATS:
        raw = stream.put(tensor.data)
        return raw.view(_FLOATS[tensor.format]).view(tensor.shape).to(dtype)
    if tensor.format not in FORMATS or len(tensor.shape) != 2:
        values = dequantize(tensor)
        raw = stream.put(values.reshape(-1).view("u1"))
        return raw.view(torch.float32).view(tensor.shape).to(dtype)
    raw = stream.put(tensor.data)
    matrix = unpack(raw.view(tensor.shape[0], -1), tensor.format, tensor.shape[1])
    return matrix if keeps_quantized else matrix.dequantized(dtype)


def _narrowed(matrix: Matrix, narrow: NarrowWeights | None) -> Matrix:
    """Bring floats into fewer bits, if they are a matrix that can be cut into groups."""
    if narrow is None or not isinstance(matrix, Tensor) or matrix.ndim != 2 or matrix.shape[1] % 32:
        return matrix
    return in_fewer_bits(matrix, narrow)
