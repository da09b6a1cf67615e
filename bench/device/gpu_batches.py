"""Batches of `bench.gpu`: rows over blocks of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.subjects.samples import samples_of
from skerry_core.batch import ForwardBatch, Int32
from skerry_core.config import BLOCK_SIZE

CHAT = {"temperature": 0.7, "top_p": 0.95}
"""How a chat is usually sampled."""


def step(rows: int, count: int, context: int) -> ForwardBatch:
    """Return a step of the last `count` tokens of each row's context, whose last one is sampled
    greedily."""
    tokens = np.arange(rows * count, dtype=np.int32)
    return ForwardBatch(
        token_ids=tokens % 50,
        positions=np.tile(np.arange(context - count, context, dtype=np.int32), rows),
        query_start=np.arange(0, rows * count + 1, count, dtype=np.int32),
        block_tables=_tables([context] * rows),
        sample_tokens=tokens[count - 1 :: count],
        sampling=samples_of(rows),
    )


def decoding(
    contexts: Sequence[int], count: int, *, is_sampled: bool = False
) -> list[ForwardBatch]:
    """Return steps that follow one another, the first one over contexts of so many tokens: each
    takes the tokens that the one before it makes."""
    rows = np.arange(len(contexts), dtype=np.int32)
    tables = _tables([context + count - 1 for context in contexts])
    return [
        ForwardBatch(
            token_ids=rows % 50,
            positions=np.array(contexts, np.int32) - 1 + index,
            query_start=np.arange(len(contexts) + 1, dtype=np.int32),
            block_tables=tables,
            sample_tokens=rows,
            sampling=samples_of(
                len(contexts), seed=rows, position=index, **(CHAT if is_sampled else {})
            ),
            feeds=np.stack([rows, rows], axis=1) if index else None,
        )
        for index in range(count)
    ]


def num_blocks(contexts: Sequence[int]) -> int:
    """Return the blocks that rows of these contexts have."""
    return sum(-(-context // BLOCK_SIZE) for context in contexts)


def _tables(contexts: Sequence[int]) -> Int32:
    """Return block tables i32[R, M] of rows of so many tokens; unused entries are -1."""
    widths = [num_blocks([context]) for context in contexts]
    tables = np.full((len(contexts), max(widths)), -1, np.int32)
    begin = 0
    for row, width in zip(tables, widths, strict=True):
        row[:width] = np.arange(begin, begin + width)
        begin += width
    return tables
