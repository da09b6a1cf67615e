"""Dense layers behind the pooling, as sentence-transformers leaves them beside a model.

`modules.json` lists them among what a text goes through; each has a folder with its own
`config.json` and `model.safetensors`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from skerry_core.encoder import forward
from skerry_core.encoder.network import packed
from skerry_core.exact_math import tanh_f32
from skerry_core.kernels.simd.emitter import LANES
from skerry_core.kernels.simd.memory import address
from skerry_core.weights.files import map_file, read_json_file
from skerry_core.weights.safetensors import read_safetensors
from skerry_core.weights.tensors import Float32, WeightsError, check_shapes, dequantize

_ACTIVATIONS: dict[str, Literal["none", "tanh"]] = {
    "torch.nn.modules.linear.Identity": "none",
    "torch.nn.modules.activation.Tanh": "tanh",
}
_MAX_MODULES = 16
_FOLDER = re.compile(r"[\w-][\w.-]*")
_Width = Annotated[int, Meta(ge=LANES, le=1 << 14, multiple_of=LANES)]


class _DenseConfig(Struct, frozen=True, kw_only=True):
    in_features: _Width
    out_features: _Width
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"


class Projection:
    """One dense layer: a matrix, its bias, and perhaps tanh."""

    def __init__(self, weight: Float32, bias: Float32, *, has_tanh: bool) -> None:
        """`weight` is f32[outputs, inputs], `bias` f32[outputs]."""
        self.outputs, self.inputs = weight.shape
        self._panels = packed(weight)
        self._bias = np.ascontiguousarray(bias)
        self._has_tanh = has_tanh

    def apply(self, vector: Float32) -> Float32:
        """Return f32[outputs] of a vector f32[inputs]; its kernels must be loaded."""
        out = np.empty(self.outputs, np.float32)
        forward.matmul(
            address(vector), 4 * self.inputs, 1, self.inputs, address(self._panels),
            address(self._bias), self.outputs // LANES, address(out), 4 * self.outputs,
        )  # fmt: skip
        if self._has_tanh:
            return tanh_f32(out)
        return out


def dense_folders(folder: Path) -> list[str]:
    """Return names of the folders of dense layers, in order; none without a modules.json. Raises
    WeightsError and OSError."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    try:
        modules = msgspec.json.decode(path.read_bytes(), type=list[_Module])
    except msgspec.DecodeError as error:
        raise WeightsError(f"{path}: {error}") from None
    names = [each.path for each in modules if each.type.rpartition(".")[2] == "Dense"]
    if len(names) > _MAX_MODULES or not all(map(_FOLDER.fullmatch, names)):
        raise WeightsError(f"{path}: folders of dense layers are {names}")
    return names


class _Module(Struct, frozen=True):
    type: str
    path: str = ""


def open_projections(folder: Path, inputs: int) -> list[Projection]:
    """Read the dense layers beside a model whose pooled vectors have so many dimensions. Raises
    WeightsError and OSError."""
    projections: list[Projection] = []
    for name in dense_folders(folder):
        projections.append(_open(folder / name, inputs))
        inputs = projections[-1].outputs
    return projections


def _open(folder: Path, inputs: int) -> Projection:
    path = folder / "config.json"
    try:
        config = msgspec.convert(read_json_file(path), _DenseConfig)
    except msgspec.ValidationError as error:
        raise WeightsError(f"{path}: {error}") from None
    activation = _ACTIVATIONS.get(config.activation_function)
    if activation is None:
        raise WeightsError(
            f"{path}: activation_function {config.activation_function!r} is not supported, only "
            f"{tuple(_ACTIVATIONS)}"
        )
    if config.in_features != inputs:
        raise WeightsError(f"{path}: in_features is {config.in_features}, vectors have {inputs}")
    file = folder / "model.safetensors"
    tensors = read_safetensors(map_file(file), str(file))
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (config.out_features, inputs)}
    if config.bias:
        shapes["linear.bias"] = (config.out_features,)
    check_shapes({name: each.shape for name, each in tensors.items()}, shapes, str(file))
    values = {name: dequantize(each) for name, each in tensors.items()}
    nothing = np.zeros(config.out_features, np.float32)
    return Projection(
        values["linear.weight"], values.get("linear.bias", nothing), has_tanh=activation == "tanh"
    )
