"""What a runner refuses before it touches a device: compiled code would answer with a crash."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import ForwardBatch
from skerry_core.config import BLOCK_SIZE, KVFormat
from skerry_core.kv.canonical import kv_dtype
from skerry_core.runner import ModelRunner


def check_batch(batch: ForwardBatch, runner: ModelRunner) -> None:
    """Raise ValueError when a batch is beyond the runner's sizes or points outside its memory."""
    tokens, samples = len(batch.token_ids), len(batch.sample_tokens)
    if not 1 <= tokens <= runner.max_step_tokens:
        raise ValueError(f"a step has 1 to {runner.max_step_tokens} tokens, got {tokens}")
    if samples > runner.max_samples:
        raise ValueError(f"a step has at most {runner.max_samples} samples, got {samples}")
    most = min(runner.model.max_context, runner.num_blocks * BLOCK_SIZE)
    _check_range("positions", batch.positions, most)
    _check_range("token ids", batch.token_ids, runner.model.vocab_size)
    last = batch.positions[batch.query_start[1:] - 1] // BLOCK_SIZE
    if last.max() >= batch.block_tables.shape[1]:
        raise ValueError("a row's block table is shorter than its context")
    used = np.arange(batch.block_tables.shape[1]) <= last[:, None]
    _check_range("blocks", batch.block_tables[used], runner.num_blocks)


def check_blocks(blocks: Sequence[int], num_blocks: int) -> None:
    """Raise ValueError unless there are such blocks."""
    for block in blocks:
        if not 0 <= block < num_blocks:
            raise ValueError(f"there is no block {block}, only {num_blocks}")


def check_block_data(data: NDArray[np.generic], kv_format: KVFormat) -> None:
    """Raise ValueError unless `data` is a canonical block of this format."""
    expected = kv_dtype(kv_format.dtype)
    if data.shape != kv_format.shape or data.dtype != expected:
        raise ValueError(
            f"expected a block of {expected}{kv_format.shape}, got {data.dtype}{data.shape}"
        )


def check_admitted(
    blocks: Sequence[int], data: NDArray[np.generic], num_blocks: int, kv_format: KVFormat
) -> None:
    """Raise ValueError unless there are such blocks, and `data` has a canonical one for each."""
    check_blocks(blocks, num_blocks)
    for _, each in zip(blocks, data, strict=True):
        check_block_data(each, kv_format)


def check_finite(data: NDArray[np.generic]) -> None:
    """Raise ValueError unless all of these float16 values are finite."""
    if (data.view(np.uint16) & 0x7C00 == 0x7C00).any():  # faster than isfinite on halves
        raise ValueError("a block of KV must be finite")


def _check_range(what: str, values: NDArray[np.int32], end: int) -> None:
    if values.min() < 0 or values.max() >= end:
        raise ValueError(f"{what} must be in [0, {end})")
