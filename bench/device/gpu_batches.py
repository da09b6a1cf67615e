"""Batches of `bench.gpu`: rows over blocks of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.subjects.samples import samples_of
from skerry_core.batch import ForwardBatch
from skerry_core.config import BLOCK_SIZE


def step(rows: int, count: int, context: int, *, is_sampled: bool = False) -> ForwardBatch:
    """The last `count` tokens of each row's context; the last one of them is sampled, greedily or
    as a chat's usually is."""
    width = -(-context // BLOCK_SIZE)
    tokens = np.arange(rows * count, dtype=np.int32)
    return ForwardBatch(
        token_ids=tokens % 50,
        positions=np.tile(np.arange(context - count, context, dtype=np.int32), rows),
        query_start=np.arange(0, rows * count + 1, count, dtype=np.int32),
        block_tables=np.arange(rows * width, dtype=np.int32).reshape(rows, width),
        sample_tokens=tokens[count - 1 :: count],
        sampling=samples_of(rows, temperature=0.8, top_p=0.95) if is_sampled else samples_of(rows),
    )


def last_tokens(contexts: Sequence[int]) -> ForwardBatch:
    """A decoding step of rows of unlike contexts, sampled greedily."""
    widths = [-(-context // BLOCK_SIZE) for context in contexts]
    tables = np.full((len(contexts), max(widths)), -1, np.int32)
    begin = 0
    for row, width in zip(tables, widths, strict=True):
        row[:width] = np.arange(begin, begin + width)
        begin += width
    rows = np.arange(len(contexts), dtype=np.int32)
    return ForwardBatch(
        token_ids=rows % 50,
        positions=np.array(contexts, np.int32) - 1,
        query_start=np.arange(len(contexts) + 1, dtype=np.int32),
        block_tables=tables,
        sample_tokens=rows,
        sampling=samples_of(len(contexts)),
    )
