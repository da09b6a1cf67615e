"""Tensors of quantised safetensors joined to weights: their codes, scales and zero points.

A weight is made when it is read, and of a rank's rows and columns no more is read and made than
they need (`MadeMatrix`). Columns are cut between blocks of 32, of which groups that share a scale
have several; words of eight rows or columns are read whole at both ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skerry_core.models.quantization import Quantization
from skerry_core.weights import checkpoint_blocks as blocks
from skerry_core.weights.bf12_files import METHOD, join_bf12
from skerry_core.weights.tensors import (
    RAW_FORMATS,
    Bytes,
    FileTensor,
    Float32,
    MadeMatrix,
    WeightsError,
    dequantize,
)

_NOT_WEIGHTS = (
    *("input_scale", "output_scale", "k_scale", "q_scale", "v_scale", "g_idx", "weight_shape"),
)
_BLOCK = 32  # values that share a scale in memory


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
        size = inputs // groups

        def make(rows: range, columns: range) -> Bytes:
            octets = _spanned(rows, 8)
            if awq:
                codes = blocks.awq_codes(_words(words.cut(-2, columns).cut(-1, octets)))
                codes = _from(codes, rows, 8)
            else:
                eighths = _spanned(columns, 8)
                codes = blocks.gptq_codes(_words(words.cut(-2, eighths).cut(-1, rows)))
            own = _spanned(columns, size)
            packed = _words(zeros.cut(-2, own).cut(-1, octets))
            points = (
                blocks.awq_codes(packed) if awq else blocks.gptq_zeros(packed, less_one=less_one)
            )
            halves = dequantize(scales.cut(-2, own).cut(-1, rows)).T
            at = _of_blocks(columns, size)
            return blocks.uint4_rows(codes, halves[:, at], _from(points, rows, 8)[:, at])

        return self._made("UINT4", (outputs, inputs), f"{module}.scales", make)

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
        name, size = f"{module}.weight_zero_point", inputs // groups
        zeros = self._matrix(name, "I32") if name in self.tensors else None
        if zeros is not None:
            self._check(name, zeros, (-(-outputs // 8), groups))

        def make(rows: range, columns: range) -> Bytes:
            codes = blocks.packed_codes(_words(words.cut(-2, rows).cut(-1, _spanned(columns, 8))))
            own, at = _spanned(columns, size), _of_blocks(columns, size)
            halves = dequantize(scales.cut(-2, rows).cut(-1, own))[:, at]
            if zeros is None:
                return blocks.q4_0_rows(codes, halves)
            octets = _spanned(rows, 8)
            packed = _words(zeros.cut(-2, octets).cut(-1, own))
            points = _from(blocks.packed_zeros(packed, 8 * len(octets)), rows, 8)
            return blocks.uint4_rows(codes, halves, points[:, at])

        return self._made("Q4_0" if zeros is None else "UINT4", (outputs, inputs), name, make)

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

        def scales(rows: range, columns: range) -> Float32:
            if whole:
                return np.broadcast_to(dequantize(scale).reshape(1, 1), (len(rows), 1))
            if not in_blocks:
                return dequantize(scale.cut(-len(scale.shape), rows)).reshape(-1, 1)
            own = scale.cut(-2, _spanned(rows, high)).cut(-1, _spanned(columns, wide))
            by_row = np.arange(rows.start, rows.stop) // high - rows.start // high
            return dequantize(own)[by_row][:, _of_blocks(columns, wide)]

        def make(rows: range, columns: range) -> Bytes:
            values = tensor.cut(-2, rows).cut(-1, columns)
            return blocks.fp8_rows(values.by_row, scales(rows, columns))

        return self._made("FP8", (outputs, inputs), name, make)

    def mxfp4(self, name: str) -> FileTensor:
        """Return a stack of matrices of gpt-oss."""
        packed, scales = self._tensor(f"{name}_blocks", "U8"), self._tensor(f"{name}_scales", "U8")
        *shape, groups, size = packed.shape
        if not shape or size != 16:
            raise WeightsError(f"{self.file}: tensor {name + '_blocks'!r} has shape {packed.shape}")
        self._check(f"{name}_scales", scales, (*shape, groups))

        form = (-1, shape[-1], groups)
        codes = packed.data.reshape(*form, size)  # views: nothing is read yet
        exponents = scales.data.reshape(form)

        def make(expert: int, rows: range, columns: range) -> Bytes:
            own = (
                slice(rows.start, rows.stop),
                slice(columns.start // _BLOCK, columns.stop // _BLOCK),
            )
            return blocks.mxfp4_rows(codes[expert][own], exponents[expert][own])

        one = shape[-1], _BLOCK * groups
        each = tuple(
            self._made("MXFP4", one, f"{name}_blocks", partial(make, expert))
            for expert in range(len(codes))
        )
        return each[0] if len(shape) == 1 else FileTensor("MXFP4", (*shape, one[1]), each)

    def _made(
        self, format_: str, shape: tuple[int, int], name: str, make: Callable[[range, range], Bytes]
    ) -> FileTensor:
        """Return a matrix that `make` makes; a fault of its values is named after tensor `name`."""

        def named(rows: range, columns: range) -> Bytes:
            try:
                return make(rows, columns)
            except OverflowError as error:
                raise WeightsError(f"{self.file}: tensor {name!r}: {error}") from None

        return FileTensor(format_, shape, MadeMatrix(named, range(shape[0]), range(shape[1])))

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


def _spanned(part: range, size: int) -> range:
    """Return the groups of so many that some rows or columns lie in."""
    return range(part.start // size, -(-part.stop // size))


def _from(rows: Bytes, part: range, size: int) -> Bytes:
    """Return the rows of a part, of those of all groups that it lies in."""
    first = part.start % size
    return rows[first : first + len(part)]


def _of_blocks(columns: range, size: int) -> NDArray[np.int64]:
    """Return which of the groups that columns lie in each of their blocks has."""
    starts = np.arange(columns.start, columns.stop, _BLOCK)
    return starts // size - columns.start // size
