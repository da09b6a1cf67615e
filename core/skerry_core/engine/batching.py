"""From a plan to flat arrays, cheaply: a step of 32 rows must not cost Python a millisecond.

Each running sequence owns a slot, a row of arrays that hold what does not change from step to step
(sampling parameters) or only grows (block tables). A batch takes its rows out of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as ListOf

import numpy as np

from skerry_core.batch import Batch, Float32, Int32, SamplingBatch, UInt32
from skerry_core.blocks import blocks_for
from skerry_core.engine.adjustments import Adjustments, LogitBias, TokenCounts
from skerry_core.engine.plan import Row
from skerry_core.engine.sequence import Sequence
from skerry_core.request import SamplingParams

_NO_INTS: Int32 = np.empty(0, np.int32)
_NO_FLOATS: Float32 = np.empty(0, np.float32)


class BatchBuilder:
    """Builds each step's `Batch`. Its arrays are overwritten by the next `build`."""

    def __init__(self, *, max_running: int, max_step_tokens: int, max_context: int) -> None:
        self._token_ids = np.empty(max_step_tokens, np.int32)
        self._positions = np.empty(max_step_tokens, np.int32)
        self._counting = np.arange(max_context, dtype=np.int32)
        self._tables = np.full((max_running, blocks_for(max_context)), -1, np.int32)
        self._table_lengths = [0] * max_running
        self._sampling = _SlotSampling(max_running)
        self._adjustments: dict[Sequence, Adjustments] = {}

    def build(self, rows: ListOf[Row]) -> Batch:
        """Flat arrays of the rows, samples in row order, a row's prompt logprobs first."""
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
        return Batch(
            token_ids=self._token_ids[:end],
            positions=self._positions[:end],
            query_start=np.array(query_start, np.int32),
            block_tables=self._tables[slots, :width],
            sample_tokens=np.array(sample_tokens, np.int32),
            sampling=self._build_sampling(rows),
            feeds=np.array(feeds, np.int32) if feeds else None,
        )

    def append(self, sequence: Sequence, token_id: int) -> None:
        """A running sequence made a token."""
        sequence.append(token_id)
        history = self._adjustments[sequence].history
        if history is not None:
            history.append(token_id)

    def forget(self, sequence: Sequence) -> None:
        """A sequence ended."""
        self._adjustments.pop(sequence, None)

    def _occupy(self, sequence: Sequence) -> None:
        self._tables[sequence.slot] = -1
        self._table_lengths[sequence.slot] = 0
        sampling = sequence.request.sampling
        self._sampling.put(sequence.slot, sampling)
        if sequence not in self._adjustments:  # it may come back from preemption
            prompt, output = np.split(sequence.tokens, [sequence.num_prompt])
            self._adjustments[sequence] = Adjustments(prompt, output, sampling)

    def _update_table(self, sequence: Sequence) -> None:
        slot, written = sequence.slot, self._table_lengths[sequence.slot]
        length = len(sequence.blocks)
        if length > written:
            self._tables[slot, written:length] = sequence.blocks[written:]
            self._table_lengths[slot] = length

    def _build_sampling(self, rows: ListOf[Row]) -> SamplingBatch:
        slots: list[int] = []
        positions: list[int] = []
        histories: list[TokenCounts | None] = []
        biases: list[LogitBias | None] = []
        for row in rows:
            sequence = row.sequence
            slots += [sequence.slot] * row.num_samples
            if row.num_targets:
                start = sequence.num_prompt_logprobs
                positions += range(start, start + row.num_targets)
                histories += [None] * row.num_targets
                biases += [None] * row.num_targets
            if row.makes_token:
                adjustments = self._adjustments[sequence]
                first, made = sequence.num_tokens, sequence.num_output
                positions += range(first, first + row.num_drafts + 1)
                histories += adjustments.histories(sequence.span(first, first + row.num_drafts))
                biases += [adjustments.bias(made + n) for n in range(row.num_drafts + 1)]
        batch = self._sampling.take(slots, positions, histories, biases)
        sample = 0
        for row in rows:
            if row.num_targets:
                _set_targets(batch, sample, row)
            sample += row.num_samples
        batch.allowed = _allowed(rows)
        return batch


def _set_targets(batch: SamplingBatch, first: int, row: Row) -> None:
    """Samples from `first` on tell logprobs of prompt tokens, which are there already."""
    own = slice(first, first + row.num_targets)
    batch.targets[own] = row.sequence.tokens[batch.positions[own]]
    batch.num_logprobs[own] = row.sequence.request.prompt_logprobs or 0


def _allowed(rows: ListOf[Row]) -> UInt32 | None:
    """Masks u32[S, W] of the samples that make a token under a grammar; all ones elsewhere."""
    masks: list[tuple[int, UInt32]] = []
    sample = 0
    for row in rows:
        sample += row.num_samples
        matcher = row.sequence.request.matcher
        if row.makes_token and matcher is not None and matcher.mask is not None:
            masks.append((sample - 1, matcher.mask))
    if not masks:
        return None
    allowed = np.full((sample, len(masks[0][1])), 0xFFFFFFFF, np.uint32)
    for index, mask in masks:
        allowed[index] = mask
    return allowed


class _SlotSampling:
    """Sampling parameters by slot."""

    def __init__(self, num_slots: int) -> None:
        self._seeds = np.zeros(num_slots, np.uint64)
        self._choices = np.zeros(num_slots, np.int32)
        self._temperature = np.zeros(num_slots, np.float32)
        self._top_p = np.ones(num_slots, np.float32)
        self._top_k = np.zeros(num_slots, np.int32)
        self._min_p = np.zeros(num_slots, np.float32)
        self._repetition_penalty = np.ones(num_slots, np.float32)
        self._frequency_penalty = np.zeros(num_slots, np.float32)
        self._presence_penalty = np.zeros(num_slots, np.float32)
        self._num_logprobs = np.zeros(num_slots, np.int32)

    def put(self, slot: int, sampling: SamplingParams) -> None:
        self._seeds[slot] = sampling.seed
        self._choices[slot] = sampling.choice
        self._temperature[slot] = sampling.temperature
        self._top_p[slot] = sampling.top_p
        self._top_k[slot] = sampling.top_k
        self._min_p[slot] = sampling.min_p
        self._repetition_penalty[slot] = sampling.repetition_penalty
        self._frequency_penalty[slot] = sampling.frequency_penalty
        self._presence_penalty[slot] = sampling.presence_penalty
        self._num_logprobs[slot] = -1 if sampling.logprobs is None else sampling.logprobs

    def take(
        self,
        slots: ListOf[int],
        positions: ListOf[int],
        histories: ListOf[TokenCounts | None],
        biases: ListOf[LogitBias | None],
    ) -> SamplingBatch:
        """Parameters of the samples at `slots`, none of them with a target."""
        index = np.array(slots, np.intp)
        history_start = _starts(0 if h is None else len(h.ids) for h in histories)
        bias_start = _starts(0 if b is None else len(b.ids) for b in biases)
        return SamplingBatch(
            positions=np.array(positions, np.int64),
            seeds=self._seeds[index],
            choices=self._choices[index],
            temperature=self._temperature[index],
            top_p=self._top_p[index],
            top_k=self._top_k[index],
            min_p=self._min_p[index],
            repetition_penalty=self._repetition_penalty[index],
            frequency_penalty=self._frequency_penalty[index],
            presence_penalty=self._presence_penalty[index],
            history_start=history_start,
            history_ids=_join_ints(h.ids for h in histories if h is not None),
            history_counts=_join_ints(h.counts for h in histories if h is not None),
            bias_start=bias_start,
            bias_ids=_join_ints(b.ids for b in biases if b is not None),
            bias_values=_join_floats(b.values for b in biases if b is not None),
            num_logprobs=self._num_logprobs[index],
            targets=np.full(len(slots), -1, np.int32),
        )


def _starts(lengths: Iterable[int]) -> Int32:
    """Running sums, from 0: where each sample's entries start and the last one's end."""
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    return np.array(starts, np.int32)


def _join_ints(arrays: Iterable[Int32]) -> Int32:
    return np.concatenate([_NO_INTS, *arrays])


def _join_floats(arrays: Iterable[Float32]) -> Float32:
    return np.concatenate([_NO_FLOATS, *arrays])
