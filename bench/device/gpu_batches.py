"""Batches of `bench.gpu`: rows of one length, over blocks of their own, sampled greedily."""

from __future__ import annotations

import numpy as np

from skerry_core.batch import Batch, SamplingBatch
from skerry_core.config import BLOCK_SIZE


def step(rows: int, count: int, context: int) -> Batch:
    """The last `count` tokens of each row's context; the last one of them is sampled, greedily."""
    width = -(-context // BLOCK_SIZE)
    tokens = np.arange(rows * count, dtype=np.int32)
    return Batch(
        token_ids=tokens % 50,
        positions=np.tile(np.arange(context - count, context, dtype=np.int32), rows),
        query_start=np.arange(0, rows * count + 1, count, dtype=np.int32),
        block_tables=np.arange(rows * width, dtype=np.int32).reshape(rows, width),
        sample_tokens=tokens[count - 1 :: count],
        sampling=greedy(rows),
    )


def greedy(count: int) -> SamplingBatch:
    ints, zeros = np.zeros(0, np.int32), np.zeros(count, np.int32)
    floats = np.zeros(count, np.float32)
    return SamplingBatch(
        positions=np.zeros(count, np.int64), seeds=np.zeros(count, np.uint64), choices=zeros,
        temperature=floats, top_p=floats + 1, top_k=zeros, min_p=floats,
        repetition_penalty=floats + 1, frequency_penalty=floats, presence_penalty=floats,
        history_start=np.zeros(count + 1, np.int32), history_ids=ints, history_counts=ints,
        bias_start=np.zeros(count + 1, np.int32), bias_ids=ints,
        bias_values=np.zeros(0, np.float32), num_logprobs=zeros - 1, targets=zeros - 1,
    )  # fmt: skip
