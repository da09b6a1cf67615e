"""Driving a CPU runner step by step, for tests that compare logits bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import Batch, SamplingBatch
from skerry_core.config import BLOCK_SIZE
from skerry_core.runners.numba_cpu import NumbaRunner

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Row:
    """Consecutive tokens of one sequence, from position `start` on, over its block table."""

    token_ids: Sequence[int]
    start: int
    table: Sequence[int]
    sampled: Sequence[int] = field(default=())  # which of the tokens; the last one when empty

    @property
    def samples(self) -> list[int]:
        return list(self.sampled) or [len(self.token_ids) - 1]


def greedy(samples: int, **fields: Any) -> SamplingBatch:
    """Greedy sampling of each position, but for the given fields."""
    plain: dict[str, Any] = {
        "positions": np.zeros(samples, np.int64),
        "seeds": np.zeros(samples, np.uint64),
        "choices": np.zeros(samples, np.int32),
        "temperature": np.zeros(samples, np.float32),
        "top_p": np.ones(samples, np.float32),
        "top_k": np.zeros(samples, np.int32),
        "min_p": np.zeros(samples, np.float32),
        "repetition_penalty": np.ones(samples, np.float32),
        "frequency_penalty": np.zeros(samples, np.float32),
        "presence_penalty": np.zeros(samples, np.float32),
        "history_start": np.zeros(samples + 1, np.int32),
        "history_ids": np.zeros(0, np.int32),
        "history_counts": np.zeros(0, np.int32),
        "bias_start": np.zeros(samples + 1, np.int32),
        "bias_ids": np.zeros(0, np.int32),
        "bias_values": np.zeros(0, np.float32),
        "num_logprobs": np.full(samples, -1, np.int32),
        "targets": np.full(samples, -1, np.int32),
    }
    return SamplingBatch(**{**plain, **fields})


def batch_of(rows: Sequence[Row], **sampling: Any) -> Batch:
    width = max(len(row.table) for row in rows)
    starts = np.cumsum([0, *(len(row.token_ids) for row in rows)])
    samples = [start + s for start, row in zip(starts[:-1], rows, strict=True) for s in row.samples]
    return Batch(
        token_ids=np.concatenate([row.token_ids for row in rows]).astype(np.int32),
        positions=np.concatenate(
            [np.arange(row.start, row.start + len(row.token_ids)) for row in rows]
        ).astype(np.int32),
        query_start=starts.astype(np.int32),
        block_tables=np.array(
            [[*row.table, *[-1] * (width - len(row.table))] for row in rows], np.int32
        ),
        sample_tokens=np.array(samples, np.int32),
        sampling=greedy(len(samples), **sampling),
    )


def logits_of(runner: NumbaRunner, rows: Sequence[Row]) -> Float32:
    """Run one step; logits of its sampled tokens."""
    runner.execute(batch_of(rows))
    return runner.last_logits().copy()


def table_for(tokens: int, first: int) -> list[int]:
    """A block table for so many tokens; not in order, so that order is seen to be respected."""
    return list(range(first, first + -(-tokens // BLOCK_SIZE)))[::-1]


def prefill(
    runner: NumbaRunner, token_ids: Sequence[int], table: Sequence[int], chunk: int
) -> Float32:
    """Logits of every token, computed `chunk` tokens at a time."""
    logits = []
    for start in range(0, len(token_ids), chunk):
        part = token_ids[start : start + chunk]
        logits.append(logits_of(runner, [Row(part, start, table, range(len(part)))]))
    return np.concatenate(logits)
