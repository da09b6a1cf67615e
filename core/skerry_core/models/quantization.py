"""Quantised safetensors: what config.json may say of them, and their tensors joined to weights.

Supported are FP8 in blocks, channels and tensors (DeepSeek's `fp8` and compressed-tensors), 4-bit
integers of AWQ, GPTQ and compressed-tensors, gpt-oss's MXFP4, and our lossless BF12. GPTQ's
`desc_act`, and what compressed-tensors calls actorder `group`, put inputs in another order, and are
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skerry_core.models.metadata import CheckpointMetadata
from skerry_core.weights import checkpoint_blocks as blocks
from skerry_core.weights.bf12_files import METHOD, VERSION, join_bf12
from skerry_core.weights.safetensors import RAW_FORMATS
from skerry_core.weights.tensors import Bytes, FileTensor, Float32, WeightsError, dequantize

METHODS = ("awq", METHOD, "compressed-tensors", "fp8", "gptq", "mxfp4")
_PACKINGS = ("float-quantized", "naive-quantized", "pack-quantized")
_NOT_WEIGHTS = (
    *("input_scale", "output_scale", "k_scale", "q_scale", "v_scale", "g_idx", "weight_shape"),
)
_BLOCK = 32  # values that share a scale in memory


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint's matrices are quantised."""

    method: str  # of METHODS
    block: tuple[int, int] = (128, 128)  # outputs and inputs that share a scale, of FP8 in blocks
    zeros_less_one: bool = True  # of GPTQ


def read_quantization(metadata: CheckpointMetadata) -> Quantization | None:
    """Return what `quantization_config` says; None without one. Raises WeightsError for what is
    not supported, by its name."""
    if not metadata.has("quantization_config"):
        return None
    section = metadata.section("quantization_config")
    method = section.text("quant_method")
    if method not in METHODS:
        raise WeightsError(
            f"{metadata.file}: quant_method {method!r} is not supported, only {', '.join(METHODS)}"
        )
    if method in ("awq", "gptq"):
        section.integer("bits")
        section.refuse("bits", unless=4)
        section.refuse("desc_act")
    if method == "awq" and section.text("version", "gemm").lower() != "gemm":
        raise section.bad("version")
    if method == "gptq":
        form = section.text("checkpoint_format", "gptq")
        if form not in ("gptq", "gptq_v2"):
            raise section.bad("checkpoint_format")
        return Quantization(method, zeros_less_one=form == "gptq")
    if method == METHOD:
        section.integer("version")
        section.refuse("version", unless=VERSION)
    if method == "fp8":
        section.refuse("fmt", unless="e4m3")
        return Quantization(method, _block(section, "weight_block_size"))
    if method == "compressed-tensors":
        return Quantization(method, _compressed(section))
    return Quantization(method)


def _compressed(section: CheckpointMetadata) -> tuple[int, int]:
    """Check what compressed-tensors says of its groups of modules; return the block of FP8."""
    if section.text("format") not in _PACKINGS:
        raise section.bad("format")
    block = (128, 128)
    groups = section.section("config_groups")
    for name in groups.keys:
        weights = groups.section(name).section("weights")
        if (weights.integer("num_bits"), weights.text("type")) not in ((4, "int"), (8, "float")):
            raise weights.bad("num_bits")
        if weights.has("actorder") and weights.text("actorder") not in ("static", "weight"):
            weights.refuse("actorder")
        block = _block(weights, "block_structure")
    return block


def _block(section: CheckpointMetadata, key: str) -> tuple[int, int]:
    if not section.has(key):
        return 128, 128
    sizes = section.sequence(key)
    if len(sizes) != 2 or any(type(size) is not int or size < 1 for size in sizes):
        raise section.bad(key)
    return sizes[0], sizes[1]


def join(
    tensors: Mapping[str, FileTensor], quantization: Quantization, file: str
) -> dict[str, FileTensor]:
    """Return a checkpoint's tensors, of those that make one weight the weight. Weights are made
    when they are read. Raises WeightsError for parts that do not fit."""
    if quantization.method == METHOD:
        return join_bf12(tensors, file)
    joined = dict[str, FileTensor]()
    joiner = _Joiner(tensors, quantization, file)
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        if kind in ("qweight", "weight_packed"):
            joined[f"{module}.weight"] = joiner.integers(module, kind)
        elif tensor.format == "F8_E4M3":
            joined[name] = joiner.fp8(name)
        elif kind.endswith("_blocks"):
            whole = name.removesuffix("_blocks")
            joined[f"{whole}.weight"] = joiner.mxfp4(whole)
        elif not joiner.is_part(module, kind):
            joined[name] = tensor
    for name, tensor in joined.items():
        if tensor.format in RAW_FORMATS:
            raise WeightsError(f"{file}: tensor {name!r} has format {tensor.format!r}")
    return joined


@dataclass(frozen=True, slots=True)
class _Joiner:
    tensors: Mapping[str, FileTensor]
    quantization: Quantization
    file: str

    def is_part(self, module: str, kind: str) -> bool:
        """Return whether a tensor belongs to a weight, or says what is not needed."""
        if kind in ("qzeros", "scales"):
            return f"{module}.qweight" in self.tensors
        if kind in ("weight_scale", "weight_scale_inv", "weight_zero_point"):
            return True
        return kind in _NOT_WEIGHTS or (
            kind.endswith("_scales") and f"{module}.{kind[:-7]}_blocks" in self.tensors
        )

    def integers(self, module: str, kind: str) -> FileTensor:
        """Return a matrix of 4-bit integers."""
        words = self._matrix(f"{module}.{kind}", "I32")
        if kind == "weight_packed":
            return self._packed(module, words)
        scales, zeros = self._matrix(f"{module}.scales"), self._matrix(f"{module}.qzeros", "I32")
        awq = self.quantization.method == "awq"
        inputs, outputs = words.shape[0] * (1 if awq else 8), words.shape[1] * (8 if awq else 1)
        groups = self._groups(f"{module}.scales", inputs, scales.shape[0])
        self._check(f"{module}.scales", scales, (groups, outputs))
        self._check(f"{module}.qzeros", zeros, (groups, outputs // 8))
        less_one = self.quantization.zeros_less_one
        self._check_order(f"{module}.g_idx", inputs, groups)

        def make() -> Bytes:
            if awq:
                codes, points = blocks.awq_codes(_words(words)), blocks.awq_codes(_words(zeros))
            else:
                codes = blocks.gptq_codes(_words(words))
                points = blocks.gptq_zeros(_words(zeros), less_one=less_one)
            return blocks.uint4_rows(codes, dequantize(scales).T, points)

        return FileTensor("UINT4", (outputs, inputs), self._named(f"{module}.scales", make))

    def _check_order(self, name: str, inputs: int, groups: int) -> None:
        """Raise WeightsError where GPTQ's group of each input is not that of its place: files of
        `desc_act`, also where config.json does not say so."""
        if name not in self.tensors:
            return
        order = self._tensor(name, "I32")
        self._check(name, order, (inputs,))
        if not np.array_equal(_words(order), np.arange(inputs) // (inputs // groups)):
            raise WeightsError(
                f"{self.file}: tensor {name!r} puts inputs in another order (desc_act), "
                "which is not supported"
            )

    def _packed(self, module: str, words: FileTensor) -> FileTensor:
        outputs, inputs = words.shape[0], 8 * words.shape[1]
        scales = self._matrix(f"{module}.weight_scale")
        groups = self._groups(f"{module}.weight_scale", inputs, scales.shape[1])
        self._check(f"{module}.weight_scale", scales, (outputs, groups))
        name = f"{module}.weight_zero_point"
        if name not in self.tensors:

            def centred() -> Bytes:
                return blocks.q4_0_rows(blocks.packed_codes(_words(words)), dequantize(scales))

            return FileTensor("Q4_0", (outputs, inputs), self._named(name, centred))
        zeros = self._matrix(name, "I32")
        self._check(name, zeros, (-(-outputs // 8), groups))

        def make() -> Bytes:
            points = blocks.packed_zeros(_words(zeros), outputs)
            codes = blocks.packed_codes(_words(words))
            return blocks.uint4_rows(codes, dequantize(scales), points)

        return FileTensor("UINT4", (outputs, inputs), self._named(name, make))

    def fp8(self, name: str) -> FileTensor:
        """Return a matrix of e4m3fn."""
        tensor = self._matrix(name, "F8_E4M3")
        of_scale = next(
            (each for each in (f"{name}_scale_inv", f"{name}_scale") if each in self.tensors), None
        )
        if of_scale is None:
            raise WeightsError(f"{self.file}: tensor {name!r} has no scale")
        scale, (outputs, inputs) = self.tensors[of_scale], tensor.shape
        self._groups(name, inputs, 1)
        high, wide = self.quantization.block
        whole = int(np.prod(scale.shape)) == 1
        in_blocks = not whole and scale.shape not in ((outputs,), (outputs, 1))
        if in_blocks:
            self._check(of_scale, scale, (-(-outputs // high), -(-inputs // wide)))
            if wide % _BLOCK:
                raise WeightsError(f"{self.file}: blocks of {wide} inputs, not of whole {_BLOCK}s")

        def scales() -> Float32:
            values = dequantize(scale)
            if not in_blocks:
                return np.broadcast_to(values.reshape(-1, 1), (outputs, 1))
            by_row = np.repeat(values, high, axis=0)[:outputs]
            return np.repeat(by_row, wide // _BLOCK, axis=1)[:, : inputs // _BLOCK]

        def make() -> Bytes:
            return blocks.fp8_rows(tensor.data.reshape(tensor.shape), scales()).reshape(-1)

        return FileTensor("FP8", (outputs, inputs), make)

    def mxfp4(self, name: str) -> FileTensor:
        """Return a stack of matrices of gpt-oss."""
        packed, scales = self._tensor(f"{name}_blocks", "U8"), self._tensor(f"{name}_scales", "U8")
        *shape, groups, size = packed.shape
        if not shape or size != 16:
            raise WeightsError(f"{self.file}: tensor {name + '_blocks'!r} has shape {packed.shape}")
        self._check(f"{name}_scales", scales, (*shape, groups))

        def make() -> Bytes:
            codes, exponents = packed.data.reshape(packed.shape), scales.data.reshape(scales.shape)
            return blocks.mxfp4_rows(codes, exponents).reshape(-1)

        return FileTensor("MXFP4", (*shape, _BLOCK * groups), make)

    def _named(self, name: str, make: Callable[[], Bytes]) -> Callable[[], Bytes]:
        def named() -> Bytes:
            try:
                return make().reshape(-1)
            except OverflowError as error:
                raise WeightsError(f"{self.file}: tensor {name!r}: {error}") from None

        return named

    def _tensor(self, name: str, format_: str | None = None) -> FileTensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise WeightsError(f"{self.file}: tensor {name!r} is missing")
        is_right = tensor.format == format_ if format_ else tensor.format not in RAW_FORMATS
        if not is_right:
            raise WeightsError(f"{self.file}: tensor {name!r} has format {tensor.format!r}")
        return tensor

    def _matrix(self, name: str, format_: str | None = None) -> FileTensor:
        tensor = self._tensor(name, format_)
        if len(tensor.shape) != 2:
            raise WeightsError(f"{self.file}: tensor {name!r} has shape {tensor.shape}")
        return tensor

    def _groups(self, name: str, inputs: int, groups: int) -> int:
        if inputs % (groups * _BLOCK):
            raise WeightsError(
                f"{self.file}: tensor {name!r}: {groups} groups of {inputs} inputs are not whole "
                f"blocks of {_BLOCK}"
            )
        return groups

    def _check(self, name: str, tensor: FileTensor, shape: tuple[int, ...]) -> None:
        if tensor.shape != shape:
            raise WeightsError(
                f"{self.file}: tensor {name!r} has shape {tensor.shape}, its weight needs {shape}"
            )


def _words(tensor: FileTensor) -> NDArray[Any]:
    return tensor.data.view("<i4").reshape(tensor.shape)
