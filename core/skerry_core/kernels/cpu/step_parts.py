"""Small parts that the phases of a step share."""

from __future__ import annotations

import numpy as np

from skerry_core.kernels.cpu.rowwise import quantize
from skerry_core.kernels.cpu.step_records import (
    MATRICES_PER_LAYER,
    PHASE,
    PHASES_PER_LAYER,
    PRIVATE_TOKENS,
)
from skerry_core.kernels.matmul.layout import BLOCK, WeightFormat
from skerry_core.kernels.matmul.matmul import MATMUL, MATRIX
from skerry_core.kernels.matmul.matmul_tiles import HEADER_BYTES
from skerry_core.kernels.simd.aliases import Address, Float32, Int32, Record
from skerry_core.kernels.simd.linking import call_by_address
from skerry_core.kernels.simd.memory import array_at
from skerry_core.kernels.simd.numba_math import building_block
from skerry_core.kernels.simd.targets import Target
from skerry_core.kernels.simd.threads import claim

call_phase = call_by_address(*PHASE)
_call_matmul = call_by_address(*MATMUL)

# Matrices of a layer, in the order of `LAYER_MATRICES`.
QUERY, KEY, VALUE, OUTPUT_MATRIX, GATE, UP, DOWN_MATRIX = range(7)
_MATRIX_BYTES = MATRIX.itemsize
_F16 = int(WeightFormat.F16)  # formats up to here take float activations


@building_block
def share(count: int, step: Record, thread: Record) -> tuple[int, int]:
    """Return this thread's even part [first, last) of `count` things."""
    first = count * thread.index // step.num_threads
    return first, count * (thread.index + 1) // step.num_threads


@building_block
def floats_at(address: Address, start: int, count: int) -> Float32:
    """Return f32[count] from the start-th float at an address on."""
    return array_at(address + 4 * start, (count,), np.float32)


@building_block
def ints_at(address: Address, start: int, count: int) -> Int32:
    return array_at(address + 4 * start, (count,), np.int32)


@building_block
def claim_item(step: Record, layer: int, phase: int) -> int:
    return claim(step.counters, layer * PHASES_PER_LAYER + phase)


@building_block
def quantize_row(
    floats: Address, quants: Address, headers: Address, row: int, columns: int
) -> None:
    quantize(
        floats + 4 * columns * row,
        columns,
        quants + columns * row,
        headers + columns // BLOCK * HEADER_BYTES * row,
    )


@building_block
def matrix_of(step: Record, layer: int, which: int) -> Address:
    return step.matrices + (layer * MATRICES_PER_LAYER + which) * _MATRIX_BYTES


@building_block
def multiply(
    target: Target,
    step: Record,
    matrix_at: Address,
    first_row: int,
    num_rows: int,
    floats: Address,
    quants: Address,
    headers: Address,
    columns: int,
    out: Address,
    stride: int,
    tokens: int,
) -> None:
    """Multiply rows of a matrix by `tokens` rows of `columns` activations, floats or quantised.

    Written to f32[tokens, stride] at `out`, whose column 0 belongs to row 0 of the matrix.
    """
    matrix = array_at(matrix_at, (1,), MATRIX)[0]
    x, x_stride = quants, columns
    if matrix.format <= _F16:
        x, x_stride = floats, 4 * columns
    first = first_row // target.rows
    last = min((first_row + num_rows) // target.rows, matrix.num_groups)
    _call_matmul(
        step.matmul,
        (target, matrix_at, first, last, x, x_stride,
         headers, columns // BLOCK * HEADER_BYTES, out, 4 * stride, tokens),
    )  # fmt: skip


@building_block
def normed_rows(step: Record, thread: Record, tokens: int) -> tuple[Address, Address, Address]:
    """Return where `norm` puts its rows: addresses of floats, quants and headers."""
    if tokens <= PRIVATE_TOKENS:
        return thread.normed, thread.quants, thread.headers
    return step.normed, step.quants, step.headers
