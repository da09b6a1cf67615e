"""One row of a packed matrix as floats: a token's embedding."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from skerry_core.kernels.matmul.layout import BLOCK, BLOCKS_PER_SUPER, WeightFormat
from skerry_core.kernels.matmul.matmul import MATRIX
from skerry_core.kernels.simd.aliases import Address, Float32
from skerry_core.kernels.simd.emitter import F16, I32, Emitter, vector
from skerry_core.kernels.simd.memory import array_at
from skerry_core.kernels.simd.numba_math import building_block, fma, intrinsic, kernel
from skerry_core.kernels.simd.targets import Target, traits_of
from skerry_core.weights.codebooks import IQ4_VALUES, MXFP4_VALUES, half_powers

_F32, _F16 = int(WeightFormat.F32), int(WeightFormat.F16)
_Q4_0, _Q4_1, _Q8_0 = int(WeightFormat.Q4_0), int(WeightFormat.Q4_1), int(WeightFormat.Q8_0)
_Q5_1, _IQ4_NL, _MXFP4 = int(WeightFormat.Q5_1), int(WeightFormat.IQ4_NL), int(WeightFormat.MXFP4)
_UINT4 = int(WeightFormat.UINT4)
_IQ4_XS, _IQ4_VALUES = int(WeightFormat.IQ4_XS), np.array(IQ4_VALUES, np.float32)
_MXFP4_VALUES, _POWERS = np.array(MXFP4_VALUES, np.float32), half_powers(np.arange(256))
_Q4_K, _Q5_K, _Q6_K = int(WeightFormat.Q4_K), int(WeightFormat.Q5_K), int(WeightFormat.Q6_K)


@intrinsic
def _load_half(typing_context: Any, target: Any, address: Any) -> Any:
    """Load the f16 at an address as float32."""
    traits = traits_of(target)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        e = Emitter(builder)
        half = e.load(arguments[1], vector(F16, 1), align=2)
        wide = e.half_to_float(half, native=traits.native_half)
        return builder.extract_element(wide, ir.Constant(I32, 0))

    return types.float32(target, types.int64), codegen


@building_block
def _embed_super_blocks(
    target: Target,
    format_: int,
    scales: Address,
    quants: Address,
    row: int,
    num_blocks: int,
    out: Float32,
) -> None:
    """Embed a row in a K format: its group's scales and quants are at these addresses."""
    rows = target.rows
    floats = 2 if _Q4_K <= format_ <= _Q5_K else 1
    num_integers = 1 if format_ == _IQ4_XS else 2
    unit_bytes = rows * (2 * floats + num_integers * BLOCKS_PER_SUPER)
    bytes_ = array_at(quants, (num_blocks, 8, rows, 4), np.int8)
    nibbles = array_at(quants, (num_blocks, 4, rows, 4), np.uint8)
    sixes = array_at(quants, (num_blocks, 6, rows, 4), np.uint8)
    for block in range(num_blocks):
        values = out[block * BLOCK : (block + 1) * BLOCK]
        unit = scales + block // BLOCKS_PER_SUPER * unit_bytes
        at = unit + rows * (2 * floats + num_integers * (block % BLOCKS_PER_SUPER))
        integers = array_at(at, (num_integers, rows), np.int8)
        d = _load_half(target, unit + 2 * row)
        first = d * np.float32(integers[0, row])
        if format_ == _IQ4_XS:
            for i in range(BLOCK // 2):
                pair = nibbles[block, i // 4, row, i % 4]
                values[i] = first * _IQ4_VALUES[pair & 15]
                values[i + BLOCK // 2] = first * _IQ4_VALUES[pair >> 4]
            continue
        if format_ == _Q6_K:
            second = d * np.float32(integers[1, row])
            for i in range(BLOCK):
                scale = first if i < BLOCK // 2 else second
                six = np.int32(sixes[block, i // 4 % 4, row, i % 4])
                low = six & 15 if i < BLOCK // 2 else six >> 4
                upper = np.int32(sixes[block, 4 + i // 16, row, i % 4])
                high = upper >> (i // 4 % 4 * 2) & 3
                values[i] = scale * np.float32((low | high << 4) - 32)
            continue
        minimum = _load_half(target, unit + 2 * (rows + row)) * np.float32(integers[1, row])
        for i in range(BLOCK):
            if format_ == _Q5_K:
                quant = np.float32(bytes_[block, i // 4, row, i % 4])
            else:
                pair = nibbles[block, i % (BLOCK // 2) // 4, row, i % 4]
                quant = np.float32(pair & 15 if i < BLOCK // 2 else pair >> 4)
            values[i] = first * quant + minimum


@kernel
def embed(target: Target, matrix_at: Address, token: int, out: Float32) -> None:
    """Write row `token` of the packed matrix of a MATRIX record, dequantised, to f32[columns]."""
    matrix = array_at(matrix_at, (1,), MATRIX)[0]
    rows = target.rows
    group = matrix.address + token // rows * matrix.group_bytes
    quants = group + matrix.scale_bytes
    row = token % rows
    if matrix.format == _F32:
        values = array_at(quants, (matrix.num_steps, rows), np.float32)
        for i in range(matrix.num_steps):
            out[i] = values[i, row]
        return
    if matrix.format == _F16:
        for i in range(matrix.num_steps):
            out[i] = _load_half(target, quants + 2 * (i * rows + row))
        return
    if _Q4_K <= matrix.format <= _Q6_K or matrix.format == _IQ4_XS:
        _embed_super_blocks(target, matrix.format, group, quants, row, matrix.num_steps, out)
        return
    for block in range(matrix.num_steps):
        values = out[block * BLOCK : (block + 1) * BLOCK]
        if matrix.format == _Q8_0:
            d = _load_half(target, group + 2 * (block * rows + row))
            bytes_ = array_at(quants, (matrix.num_steps, 8, rows, 4), np.int8)
            for i in range(BLOCK):
                values[i] = np.float32(bytes_[block, i // 4, row, i % 4]) * d
            continue
        if matrix.format == _Q5_1:
            d = _load_half(target, group + 2 * (2 * block * rows + row))
            m = _load_half(target, group + 2 * ((2 * block + 1) * rows + row))
            bytes_ = array_at(quants, (matrix.num_steps, 8, rows, 4), np.int8)
            for i in range(BLOCK):
                values[i] = fma(np.float32(bytes_[block, i // 4, row, i % 4]), d, m)
            continue
        nibbles = array_at(quants, (matrix.num_steps, 4, rows, 4), np.uint8)
        if matrix.format == _IQ4_NL or matrix.format == _MXFP4:
            table = _IQ4_VALUES
            if matrix.format == _MXFP4:
                table = _MXFP4_VALUES
                d = _POWERS[array_at(group, (matrix.num_steps, rows), np.uint8)[block, row]]
            else:
                d = _load_half(target, group + 2 * (block * rows + row))
            for i in range(BLOCK // 2):
                pair = nibbles[block, i // 4, row, i % 4]
                values[i] = table[pair & 15] * d
                values[i + BLOCK // 2] = table[pair >> 4] * d
            continue
        if matrix.format == _UINT4:
            at = group + 3 * block * rows
            d = _load_half(target, at + 2 * row)
            m = -d * np.float32(array_at(at + 2 * rows, (rows,), np.int8)[row])
        elif matrix.format == _Q4_1:
            d = _load_half(target, group + 2 * (2 * block * rows + row))
            m = _load_half(target, group + 2 * ((2 * block + 1) * rows + row))
        else:
            d = _load_half(target, group + 2 * (block * rows + row))
            m = np.float32(-8.0) * d
        for i in range(BLOCK // 2):
            pair = nibbles[block, i // 4, row, i % 4]
            values[i] = fma(np.float32(pair & 15), d, m)
            values[i + BLOCK // 2] = fma(np.float32(pair >> 4), d, m)
