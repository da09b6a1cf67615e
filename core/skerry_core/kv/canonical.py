"""KV blocks outside a runner: in canonical form (`KVFormat`), as plain arrays without a header.

NumPy has no bfloat16, so those arrays hold its bits as uint16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import Float32
from skerry_core.blocks import BlockPool, Digest
from skerry_core.config import BLOCK_SIZE, KVDtype
from skerry_core.device_pages import DevicePage, DevicePages
from skerry_core.page_checksums import check_pages, page_checksums
from skerry_core.request import KVBlock
from skerry_core.runner import BlockMover, ModelRunner, PageMover

KVArray = NDArray[np.generic]


class KVRangeError(ValueError):
    """A value that the target dtype cannot hold; the block must be recomputed, not converted."""


def kv_dtype(dtype: KVDtype) -> np.dtype[np.generic]:
    """Return the NumPy dtype of arrays of a KV dtype."""
    return np.dtype({"float16": "<f2", "bfloat16": "<u2", "float32": "<f4"}[dtype])


def to_float32(values: KVArray, dtype: KVDtype) -> Float32:
    """Convert exactly: every value of each KV dtype is a float32."""
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
    """Convert a block to another dtype; itself when they are the same.

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


def export_blocks(
    runner: ModelRunner,
    blocks: Sequence[int],
    names: Sequence[Digest],
    pages: DevicePages | None = None,
) -> list[KVBlock]:
    """Copy full blocks under their names, in one transfer where the runner can.

    The first of them stay on the device, as many as there are free `pages`.
    """
    dtype = runner.kv_format.dtype
    if pages is not None and isinstance(runner, PageMover) and (taken := pages.take(len(blocks))):
        count = len(taken)
        on_device = runner.export_pages(blocks[:count], taken)
        sent = [
            KVBlock(name, BLOCK_SIZE, page, dtype, checksum)
            for name, page, checksum in zip(names[:count], taken, on_device.tolist(), strict=True)
        ]
        return sent + export_blocks(runner, blocks[count:], names[count:])
    if not blocks or not isinstance(runner, BlockMover):
        return [
            KVBlock(name, BLOCK_SIZE, runner.export_block(block), dtype)
            for block, name in zip(blocks, names, strict=True)
        ]
    data, checksums = runner.export_blocks(blocks)
    sums = [None] * len(data) if checksums is None else checksums.tolist()
    return [
        KVBlock(name, BLOCK_SIZE, each, dtype, checksum)
        for name, each, checksum in zip(names, data, sums, strict=True)
    ]


def converted(block: KVBlock, target: KVDtype) -> KVBlock:
    """Convert a block to another dtype; itself when they are the same. Raises KVChecksumError,
    KVRangeError, or ValueError on a device."""
    if block.dtype == target:
        return block
    if isinstance(block.data, DevicePage):
        raise ValueError(f"KV in {block.dtype} on a device cannot become {target}")
    if block.checksum is None:
        return replace(block, data=convert(block.data, block.dtype, target), dtype=target)
    check_pages([block.checksum], page_checksums(block.data[None]))
    data = convert(block.data, block.dtype, target)
    return replace(block, data=data, dtype=target, checksum=int(page_checksums(data[None])[0]))


def admit(runner: ModelRunner, place: int, block: KVBlock) -> None:
    """Overwrite the runner's block `place`. Raises KVChecksumError, or ValueError on another shape
    or dtype."""
    if isinstance(block.data, DevicePage):
        if not isinstance(runner, PageMover) or block.checksum is None:
            raise ValueError("a block on a device, for a runner elsewhere or without its checksum")
        runner.admit_pages([place], [block.data], [block.checksum])
        return
    if block.checksum is None:
        runner.admit_block(place, block.data)
        return
    checksums = np.array([block.checksum], np.uint64)
    if isinstance(runner, BlockMover):
        runner.admit_blocks([place], block.data[None], checksums)
    else:
        check_pages(checksums, page_checksums(block.data[None]))
        runner.admit_block(place, block.data)


def adopt_block(runner: ModelRunner, pool: BlockPool, block: KVBlock) -> bool:
    """Make a transferred block, full and of a name that the caller has checked, a part of the
    prefix cache.

    From now on it is a cache hit like any other. False, changing nothing, when the pool has its
    digest already or no idle block. Raises KVRangeError, KVChecksumError, or ValueError on a wrong
    shape or dtype. Runs on the engine's thread.
    """
    if pool.match([block.digest]) or not pool.num_idle:
        return False
    block = converted(block, runner.kv_format.dtype)
    (place,) = places = pool.allocate(1)
    try:
        admit(runner, place, block)
        pool.seal(place, block.digest)
    finally:
        pool.release(places)
    return True


def adopt_pages(runner: PageMover, pool: BlockPool, blocks: Sequence[KVBlock]) -> list[Digest]:
    """Do as `adopt_block` does with blocks of different names whose data and checksums came in
    pages, all at once; return the names of those that there is room for."""
    wanted = [block for block in blocks if not pool.match([block.digest])][: pool.num_idle]
    if not wanted:
        return []
    places = pool.allocate(len(wanted))
    try:
        runner.admit_pages(
            places,
            [block.data for block in wanted if isinstance(block.data, DevicePage)],
            [block.checksum for block in wanted if block.checksum is not None],
        )
        for place, block in zip(places, wanted, strict=True):
            pool.seal(place, block.digest)
    finally:
        pool.release(places)
    return [block.digest for block in wanted]
