"""Histories whose last token the device alone knows (see `SamplingBatch`), and whole ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from skerry_core.batch import Int32, SamplingBatch


def whole(sampling: SamplingBatch, made: Int32) -> SamplingBatch:
    """The batch as it is once the tokens of the step before are known; -1 is none."""
    histories = list(_histories(sampling))
    for counts in histories:
        for source in [each for each in counts if each < 0]:
            del counts[source]
            if (token := int(made[-1 - source])) >= 0:
                counts[token] = counts.get(token, 0) + 1
    return _with(sampling, histories)


def without_last(
    sampling: SamplingBatch, rng: np.random.Generator, num_before: int
) -> tuple[SamplingBatch, Int32]:
    """The batch as it is before some tokens of it are known, and what the step before makes,
    those among others: i32[num_before]."""
    made = rng.integers(-1, 9, num_before).astype(np.int32)
    sources = iter(rng.permutation(num_before).tolist())
    histories = list(_histories(sampling))
    for counts in histories:
        said = [token for token, count in counts.items() if count]
        if not said or rng.random() < 0.3:
            continue
        source, token = next(sources), int(rng.choice(said))
        made[source] = token
        counts[token] -= 1
        counts[-1 - source] = 1
        if not counts[token] and rng.random() < 0.7:
            del counts[token]  # else it is in the prompt too
    return _with(sampling, histories), made


def _histories(sampling: SamplingBatch) -> Iterator[dict[int, int]]:
    bounds = sampling.history_start.tolist()
    for start, end in pairwise(bounds):
        ids, counts = sampling.history_ids[start:end], sampling.history_counts[start:end]
        yield dict(zip(ids.tolist(), counts.tolist(), strict=True))


def _with(sampling: SamplingBatch, histories: list[dict[int, int]]) -> SamplingBatch:
    pairs = [pair for counts in histories for pair in counts.items()]
    ids, counts = np.array(pairs, np.int32).reshape(-1, 2).T
    return replace(
        sampling,
        history_start=np.cumsum([0, *map(len, histories)], dtype=np.int32),
        history_ids=np.ascontiguousarray(ids),
        history_counts=np.ascontiguousarray(counts),
    )
