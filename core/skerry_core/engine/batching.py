"""From a plan to flat arrays, cheaply: a step of 32 rows must not cost Python a millisecond.

Each running sequence owns a slot, a row of arrays that hold what does not change from step to step
(sampling parameters) or only grows (block tables). A batch takes its rows out of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from itertools import accumulate

import numpy as np

from skerry_core.batch import Float32, ForwardBatch, Int32, SamplingBatch, UInt32
from skerry_core.blocks import blocks_for
from skerry_core.engine.adjustments import Adjustments, LogitBias, TokenCounts
from skerry_core.engine.sequence import Sequence
from skerry_core.engine.step_plan import PlannedRow
from skerry_core.sampling import PARAMETERS, SAMPLE

_NO_INTS: Int32 = np.empty(0, np.int32)
_NO_FLOATS: Float32 = np.empty(0, np.float32)


class BatchBuilder:
    """Builds each step's `ForwardBatch`. Its arrays are overwritten by the next `build`."""

    def __init__(self, max_running: int, max_step_tokens: int, max_context: int) -> None:
        self._token_ids = np.empty(max_step_tokens, np.int32)
        self._positions = np.empty(max_step_tokens, np.int32)
        self._counting = np.arange(max_context, dtype=np.int32)
        self._tables = np.full((max_running, blocks_for(max_context)), -1, np.int32)
        self._table_lengths = [0] * max_running
        self._samples = np.zeros(max_running, SAMPLE)  # by slot
        self._adjustments: dict[Sequence, Adjustments] = {}  # of sequences that need any

    def build(self, rows: ListOf[PlannedRow]) -> ForwardBatch:
        """Return flat arrays of the rows, samples in row order, a row's prompt logprobs first."""
        query_start = [0]
        sample_tokens: list[int] = []
        feeds: list[tuple[int, int]] = []
        end = 0
        for row in rows:
            if row.is_admission:
                self._occupy(row.sequence)
            self._update_table(row.sequence)
            start, end = end, end + row.num_tokens
            stop = row.start + row.num_tokens
            self._token_ids[start:end] = row.sequence.span(row.start, stop)
            self._positions[start:end] = self._counting[row.start : stop]
            query_start.append(end)
            sample_tokens.extend(range(end - row.num_samples, end))
            if row.sequence.expected >= 0 and stop == row.sequence.num_tokens:
                feeds.append((end - 1, row.sequence.expected))
        slots = [row.sequence.slot for row in rows]
        width = max(self._table_lengths[slot] for slot in slots)
        return ForwardBatch(
            token_ids=self._token_ids[:end],
            positions=self._positions[:end],
            query_start=np.array(query_start, np.int32),
            block_tables=self._tables[slots, :width],
            sample_tokens=np.array(sample_tokens, np.int32),
            sampling=self._build_sampling(rows),
            feeds=np.array(feeds, np.int32) if feeds else None,
        )

    def append(self, sequence: Sequence, token_id: int) -> None:
        """Append a token that a running sequence made."""
        sequence.append(token_id)
        adjustments = self._adjustments.get(sequence)
        if adjustments is not None and adjustments.history is not None:
            adjustments.history.append(token_id)

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept of a sequence that ended."""
        self._adjustments.pop(sequence, None)

    def _occupy(self, sequence: Sequence) -> None:
        slot, sampling = sequence.slot, sequence.sampling
        self._tables[slot] = -1
        self._table_lengths[slot] = 0
        num_logprobs = -1 if sampling.logprobs is None else sampling.logprobs
        parameters = (getattr(sampling, name) for name in PARAMETERS)
        self._samples[slot] = (0, sampling.seed, sampling.choice, num_logprobs, -1, *parameters)
        # It may come back from preemption.
        if sequence.has_adjustments and sequence not in self._adjustments:
            prompt, output = np.split(sequence.tokens, [sequence.prompt_tokens])
            self._adjustments[sequence] = Adjustments(
                prompt, output, sampling, has_penalties=sequence.has_penalties
            )

    def _update_table(self, sequence: Sequence) -> None:
        slot, written = sequence.slot, self._table_lengths[sequence.slot]
        length = len(sequence.blocks)
        if length > written:
            self._tables[slot, written:length] = sequence.blocks[written:]
            self._table_lengths[slot] = length

    def _build_sampling(self, rows: ListOf[PlannedRow]) -> SamplingBatch:
        slots: list[int] = []
        positions: list[int] = []
        for row in rows:
            sequence = row.sequence
            slots += [sequence.slot] * row.num_samples
            first = sequence.num_prompt_logprobs
            positions += range(first, first + row.num_targets)
            if row.makes_token:
                positions += range(sequence.num_tokens, sequence.num_tokens + row.num_drafts + 1)
        samples = self._samples[slots]
        samples["position"] = positions
        sample = 0
        for row in rows:
            if row.num_targets:
                _set_targets(samples[sample : sample + row.num_targets], row)
            sample += row.num_samples
        histories: list[TokenCounts | None] = []
        biases: list[LogitBias | None] = []
        if self._adjustments:
            for row in rows:
                self._adjust(row, histories, biases)
        return SamplingBatch(
            samples=samples,
            history_start=_starts((0 if h is None else len(h.ids) for h in histories), sample),
            history_ids=_join_ints(h.ids for h in histories if h is not None),
            history_counts=_join_ints(h.counts for h in histories if h is not None),
            bias_start=_starts((0 if b is None else len(b.ids) for b in biases), sample),
            bias_ids=_join_ints(b.ids for b in biases if b is not None),
            bias_values=_join_floats(b.values for b in biases if b is not None),
            allowed=_allowed(rows, sample),
        )

    def _adjust(
        self,
        row: PlannedRow,
        histories: list[TokenCounts | None],
        biases: list[LogitBias | None],
    ) -> None:
        """Add what changes the logits of a row's samples, if anything does, to both lists."""
        sequence = row.sequence
        adjustments = self._adjustments.get(sequence)
        if adjustments is None or not row.makes_token:
            histories += [None] * row.num_samples
            biases += [None] * row.num_samples
            return
        histories += [None] * row.num_targets
        biases += [None] * row.num_targets
        first, made = sequence.num_tokens, sequence.output_tokens
        drafts = sequence.span(first, first + row.num_drafts)
        histories += adjustments.histories(drafts, sequence.expected)
        biases += [adjustments.bias(made + n) for n in range(row.num_drafts + 1)]


def _set_targets(samples: np.ndarray[tuple[int], np.dtype[np.void]], row: PlannedRow) -> None:
    """Have samples return logprobs of prompt tokens, which are there already."""
    samples["target"] = row.sequence.tokens[samples["position"]]
    samples["num_logprobs"] = row.sequence.request.prompt_logprobs or 0


def _allowed(rows: ListOf[PlannedRow], num_samples: int) -> UInt32:
    """Return masks u32[S, W] of the samples that make a token under a grammar; all ones elsewhere,
    and u32[S, 0] where there is none."""
    masks: list[tuple[int, UInt32]] = []
    sample = 0
    for row in rows:
        sample += row.num_samples
        matcher = row.sequence.matcher
        if row.makes_token and matcher is not None and matcher.mask is not None:
            masks.append((sample - 1, matcher.mask))
    if not masks:
        return np.empty((num_samples, 0), np.uint32)
    allowed = np.full((num_samples, len(masks[0][1])), 0xFFFFFFFF, np.uint32)
    for index, mask in masks:
        allowed[index] = mask
    return allowed


def _starts(lengths: Iterable[int], num_samples: int) -> Int32:
    """Return running sums, from 0: where each sample's entries start and the last one's end.
    Without any lengths all are 0."""
    starts = list(accumulate(lengths, initial=0))
    return np.array(starts, np.int32) if len(starts) > 1 else np.zeros(num_samples + 1, np.int32)


def _join_ints(arrays: Iterable[Int32]) -> Int32:
    return np.concatenate([_NO_INTS, *arrays])


def _join_floats(arrays: Iterable[Float32]) -> Float32:
    return np.concatenate([_NO_FLOATS, *arrays])
