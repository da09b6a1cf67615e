"""One step's work as flat arrays, with shapes beside them. Built by the engine, read by runners."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt32 = NDArray[np.uint32]
Float32 = NDArray[np.float32]


def owners(start: Int32) -> Int64:
    """Return the row of each entry of a ragged list whose rows begin, and end, at `start`."""
    return np.repeat(np.arange(len(start) - 1), np.diff(start))


@dataclass(slots=True, kw_only=True)
class SamplingBatch:
    """How each of the S sampled positions chooses its token; `sampling` has the meaning.

    Penalties need history. Sample s owns entries `[history_start[s], history_start[s + 1])` of
    `history_ids`: the distinct tokens of its transcript (absent when it has no penalty), each with
    its count in the output so far; a count of 0 means "in the prompt only".

    Where tokens are fed (`ForwardBatch.feeds`) one entry of a sample may be -1 - f, with a count of
    1: the token that sample f of the step before makes, which counts once more if it is there.
    """

    samples: NDArray[np.void]  # `sampling.SAMPLE`[S]
    history_start: Int32  # i32[S + 1]
    history_ids: Int32  # i32[H]
    history_counts: Int32  # i32[H]
    bias_start: Int32  # i32[S + 1]
    bias_ids: Int32  # i32[B]
    bias_values: Float32  # f32[B]   -inf forbids a token (stop tokens before `min_tokens`)
    allowed: UInt32  # u32[S, ceil(V / 32)]; bit set: token allowed (grammars); u32[S, 0]: all are


@dataclass(slots=True, kw_only=True)
class ForwardBatch:
    """T tokens of R rows (sequences), of which S positions are sampled.

    Row r owns tokens `[query_start[r], query_start[r + 1])`, consecutive positions of one sequence;
    its KV is written to, and read from, the blocks `block_tables[r]` (position p lives in block
    `block_tables[r, p // 64]` at slot `p % 64`). Decode rows have one token, prefill chunks many;
    a runner treats them alike.
    """

    token_ids: Int32  # i32[T]
    positions: Int32  # i32[T]
    query_start: Int32  # i32[R + 1]
    block_tables: Int32  # i32[R, M]  unused entries are -1
    sample_tokens: Int32  # i32[S]    ascending indices into the T tokens
    sampling: SamplingBatch
    feeds: Int32 | None = None  # i32[F, 2]: see `runner.OverlappingRunner`

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_rows(self) -> int:
        return len(self.query_start) - 1

    @property
    def num_samples(self) -> int:
        return len(self.sample_tokens)


@dataclass(slots=True, kw_only=True)
class StepResult:
    """What a runner made of a batch. Arrays may be views that the next `execute` overwrites.

    `top_ids` and `top_logprobs` are as wide as the largest `num_logprobs` of the batch; entries
    past a sample's own `num_logprobs` are -1 and -inf. `logprobs` is garbage where none was
    requested.
    """

    token_ids: Int32  # i32[S]           -1: none is possible (all forbidden, or NaN)
    logprobs: Float32  # f32[S]          ln p(chosen), raw distribution
    top_ids: Int32  # i32[S, K]
    top_logprobs: Float32  # f32[S, K]   most likely first, ties by ascending id

    @classmethod
    def blank(cls, token_ids: Int32, num_logprobs: Int32) -> StepResult:
        """Return one without logprobs, in arrays that have room for them."""
        count, width = len(token_ids), max(0, int(num_logprobs.max(initial=0)))
        return cls(
            token_ids=token_ids,
            logprobs=np.zeros(count, np.float32),
            top_ids=np.full((count, width), -1, np.int32),
            top_logprobs=np.full((count, width), -np.inf, np.float32),
        )
