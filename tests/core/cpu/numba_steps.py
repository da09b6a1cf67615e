"""Driving a CPU runner step by step, for tests that compare logits bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from bench.subjects.samples import samples_of
from numpy.typing import NDArray

from skerry_core.batch import ForwardBatch
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


def batch_of(rows: Sequence[Row], **sampling: Any) -> ForwardBatch:
    width = max(len(row.table) for row in rows)
    starts = np.cumsum([0, *(len(row.token_ids) for row in rows)])
    samples = [start + s for start, row in zip(starts[:-1], rows, strict=True) for s in row.samples]
    return ForwardBatch(
        token_ids=np.concatenate([row.token_ids for row in rows]).astype(np.int32),
        positions=np.concatenate(
            [np.arange(row.start, row.start + len(row.token_ids)) for row in rows]
        ).astype(np.int32),
        query_start=starts.astype(np.int32),
        block_tables=np.array(
            [[*row.table, *[-1] * (width - len(row.table))] for row in rows], np.int32
        ),
        sample_tokens=np.array(samples, np.int32),
        sampling=samples_of(len(samples), **sampling),
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
