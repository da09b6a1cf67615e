"""Small parts that the phases of a step share."""

from __future__ import annotations

import numpy as np

from skerry_core.kernels.cpu.layout import BLOCK
from skerry_core.kernels.cpu.matmul_tiles import HEADER_BYTES
from skerry_core.kernels.cpu.plan import PHASES_PER_LAYER
from skerry_core.kernels.cpu.rowwise import quantize
from skerry_core.kernels.simd.aliases import Address, Float32, Int32, Record
from skerry_core.kernels.simd.memory import array_at
from skerry_core.kernels.simd.numba_math import building_block
from skerry_core.kernels.simd.threads import claim


@building_block
def share(count: int, plan: Record, thread: Record) -> tuple[int, int]:
    """This thread's even part [first, last) of `count` things."""
    first = count * thread.index // plan.num_threads
    return first, count * (thread.index + 1) // plan.num_threads


@building_block
def floats_at(address: Address, start: int, count: int) -> Float32:
    """f32[count] from the start-th float at an address on."""
    return array_at(address + 4 * start, (count,), np.float32)


@building_block
def ints_at(address: Address, start: int, count: int) -> Int32:
    return array_at(address + 4 * start, (count,), np.int32)


@building_block
def claim_item(plan: Record, layer: int, phase: int) -> int:
    return claim(plan.counters, layer * PHASES_PER_LAYER + phase)


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
