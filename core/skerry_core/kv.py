"""KV blocks outside a runner: in canonical form (`KVFormat`), as plain arrays without a header.

NumPy has no bfloat16, so those arrays hold its bits as uint16.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import Float32
from skerry_core.blocks import BlockPool, Digest
from skerry_core.config import KVDtype
from skerry_core.runners.base import BlockMover, ModelRunner

KVArray = NDArray[np.generic]

MAX_FLOAT16 = 65504.0


class KVRangeError(ValueError):
    """A value that the target dtype cannot hold; the block must be recomputed, not converted."""


def kv_dtype(dtype: KVDtype) -> np.dtype[np.generic]:
    """The NumPy dtype of arrays of a KV dtype."""
    return np.dtype({"float16": "<f2", "bfloat16": "<u2", "float32": "<f4"}[dtype])


def to_float32(values: KVArray, dtype: KVDtype) -> Float32:
    """Exact: every value of each KV dtype is a float32."""
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def from_float32(values: Float32, dtype: KVDtype) -> KVArray:
    """Round to nearest, ties to even. Raises KVRangeError beyond float16's range.

    bfloat16 reaches as far as float32, except for values that round up past its largest.
    """
    if dtype == "float32":
        return values
    if dtype == "float16":
        with np.errstate(over="ignore"):
            rounded = values.astype(np.float16)
        _refuse(values, ~np.isfinite(rounded), dtype)
        return rounded
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded_bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    _refuse(values, ~np.isfinite(values) | (rounded_bits & 0x7F80 == 0x7F80), dtype)
    return rounded_bits.astype(np.uint16).reshape(values.shape)


def convert(block: KVArray, source: KVDtype, target: KVDtype) -> KVArray:
    """A block in another dtype; itself when they are the same.

    Raises KVRangeError when a value is not finite in the target: large keys exceed float16's
    range, and clipping them would change which token attends to which.
    """
    if source == target:
        return block
    return from_float32(to_float32(block, source), target)


def _refuse(values: Float32, is_wrong: NDArray[np.bool_], dtype: KVDtype) -> None:
    if is_wrong.any():
        worst = np.asarray(values)[is_wrong].flat[0]
        raise KVRangeError(f"{worst:g} is beyond the range of {dtype}")


def export_blocks(runner: ModelRunner, blocks: Sequence[int]) -> list[KVArray]:
    """Copies of blocks, in one transfer where the runner can."""
    if blocks and isinstance(runner, BlockMover):
        return list(runner.export_blocks(blocks))
    return [runner.export_block(block) for block in blocks]


def export_block(runner: ModelRunner, block: int, dtype: KVDtype) -> KVArray:
    """Copy of a block in `dtype`. Raises KVRangeError."""
    return convert(runner.export_block(block), runner.kv_format.dtype, dtype)


def adopt_block(
    runner: ModelRunner, pool: BlockPool, digest: Digest, data: KVArray, dtype: KVDtype
) -> bool:
    """Make a transferred block, checked by the caller, a part of the prefix cache.

    From now on it is a cache hit like any other. False, changing nothing, when the pool has the
    digest already or no idle block. Raises KVRangeError, or ValueError on a wrong shape or dtype.
    Runs on the engine's thread.
    """
    if pool.match([digest]) or not pool.num_idle:
        return False
    converted = convert(data, dtype, runner.kv_format.dtype)
    (block,) = blocks = pool.allocate(1)
    try:
        runner.admit_block(block, converted)
        pool.seal(block, digest)
    finally:
        pool.release(blocks)
    return True
