"""What penalties and biases need to know of one sequence, kept up to date token by token."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skerry_core.batch import Float32, Int32
from skerry_core.sampling import SamplingParams


class TokenCounts(NamedTuple):
    """Distinct tokens i32[n], each with its count in the output i32[n]."""

    ids: Int32
    counts: Int32


class TokenHistory:
    """Distinct tokens of a sequence, each with its count in the output.

    Prompt tokens matter to the repetition penalty alone and are left out without it.
    """

    def __init__(self, prompt_ids: Int32, output_ids: Int32, sampling: SamplingParams) -> None:
        seen = np.unique(prompt_ids) if sampling.repetition_penalty != 1.0 else prompt_ids[:0]
        self._index = {token_id: i for i, token_id in enumerate(seen.tolist())}
        capacity = len(seen) + max(sampling.max_tokens, len(output_ids))
        self._ids = np.empty(capacity, np.int32)
        self._ids[: len(seen)] = seen
        self._counts = np.zeros(capacity, np.int32)
        for token_id in output_ids.tolist():
            self.append(token_id)

    def append(self, token_id: int) -> None:
        """Count one more token of the output."""
        known = len(self._index)
        index = self._index.setdefault(token_id, known)
        if index == known:
            self._ids[index], self._counts[index] = token_id, 0
        self._counts[index] += 1

    def followed_by_sample(self, sample: int) -> TokenCounts:
        """Return the counts, and one of the token that a sample of the step before makes: see
        `SamplingBatch`. Valid until the next call of any method."""
        known = len(self._index)
        self._ids[known], self._counts[known] = -1 - sample, 1
        return TokenCounts(self._ids[: known + 1], self._counts[: known + 1])

    def followed_by(self, token_ids: Int32) -> TokenCounts:
        """Return the counts as if these had been appended too."""
        added: dict[int, int] = {}
        counts = np.concatenate([self.counts, np.zeros(len(token_ids), np.int32)])
        for token_id in token_ids.tolist():
            index = self._index.get(token_id)
            if index is None:
                index = added.setdefault(token_id, len(self._index) + len(added))
            counts[index] += 1
        ids = np.concatenate([self.ids, np.fromiter(added, np.int32, len(added))])
        return TokenCounts(ids, counts[: len(ids)])

    @property
    def ids(self) -> Int32:
        return self._ids[: len(self._index)]

    @property
    def counts(self) -> Int32:
        return self._counts[: len(self._index)]


class LogitBias:
    """A sequence's biases: ids i32[B] and values f32[B]."""

    def __init__(self, biases: dict[int, float]) -> None:
        self.ids: Int32 = np.fromiter(biases, np.int32, len(biases))
        self.values: Float32 = np.fromiter(biases.values(), np.float32, len(biases))


class Adjustments:
    """History and biases of one sequence; either is None where it would change nothing."""

    def __init__(
        self, prompt_ids: Int32, output_ids: Int32, sampling: SamplingParams, *, has_penalties: bool
    ) -> None:
        self.history: TokenHistory | None = None
        if has_penalties:
            self.history = TokenHistory(prompt_ids, output_ids, sampling)
        biases: dict[int, float] = {}
        for token_id, value in sampling.logit_bias:
            biases[token_id] = biases.get(token_id, 0.0) + value
        self._bias = LogitBias(biases) if biases else None
        self._bias_without_stops: LogitBias | None = None
        self._min_tokens = 0
        if sampling.stop_token_ids:
            self._min_tokens = sampling.min_tokens
            stops = dict.fromkeys(sampling.stop_token_ids, float("-inf"))
            self._bias_without_stops = LogitBias(biases | stops)

    def histories(self, drafts: Int32, expected: int) -> list[TokenCounts | None]:
        """Return what the token after each beginning of `drafts` is penalised by; the empty one
        first. Nothing is drafted where a sample of the step before is `expected`, not -1."""
        history = self.history
        if history is None:
            return [None] * (len(drafts) + 1)
        if expected >= 0:
            return [history.followed_by_sample(expected)]
        return [
            TokenCounts(history.ids, history.counts),
            *(history.followed_by(drafts[:n]) for n in range(1, len(drafts) + 1)),
        ]

    def bias(self, output_tokens: int) -> LogitBias | None:
        """Return the biases of the token that follows `output_tokens` output tokens."""
        return self._bias_without_stops if output_tokens < self._min_tokens else self._bias
