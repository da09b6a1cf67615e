"""The heartbeat: schedule, build a batch, run it, update the sequences, hand out what was made.

With a runner that overlaps, a step is planned and launched while others are computed, as many as
the runner says. A sequence whose token is being made is left out until that is known, and the
others go on; unless the device itself feeds it to the next step (see `PlannedRow.feeds_next`). What
cannot be known yet is found out later: a sequence that ended meanwhile has run once more, for
nothing. What a sequence held may be another's while a step that uses it is under way: the runner
computes steps, and writes what is admitted, in the order in which it gets them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np

from skerry_core.blocks import BlockPool
from skerry_core.config import BLOCK_SIZE, EngineConfig
from skerry_core.engine.batching import BatchBuilder
from skerry_core.engine.capacity import Capacity, check_sequence
from skerry_core.engine.exports import Exports
from skerry_core.engine.figures import Load, Statistics, Tally
from skerry_core.engine.kv_exchange import KVExchange
from skerry_core.engine.masks import Masks
from skerry_core.engine.outputs import OutputBuilder, finish_reason
from skerry_core.engine.scheduler import Scheduler
from skerry_core.engine.second_tier import SecondTier
from skerry_core.engine.sequence import Sequence
from skerry_core.engine.speculation import Speculator, accept
from skerry_core.engine.step_plan import LaunchedStep
from skerry_core.engine.step_price import StepPrice
from skerry_core.grammar_error import GrammarError
from skerry_core.names import BlockNames
from skerry_core.request import FinishReason, KVBlock, Output
from skerry_core.runner import ModelRunner, OneByOne, OverlappingRunner

if TYPE_CHECKING:
    from skerry_core.kv.file_tier import FileTier


class Engine:
    """Runs requests on one runner, which it owns. Every call from one thread, except as stated.

    Each sequence that was added ends with exactly one `Output` that has a `finish_reason`.
    `model_key` names model and tokenizer in the digests of KV blocks. No more sequences run at
    once than fit a step: `max_running` is capped by `max_step_tokens` and the runner's samples.
    `file_tier`, which it then owns, takes the blocks that memory has no room for.
    """

    def __init__(
        self,
        runner: ModelRunner,
        config: EngineConfig,
        *,
        model_key: bytes,
        file_tier: FileTier | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        step_tokens = min(config.max_step_tokens, runner.max_step_tokens)
        max_running = min(config.max_running, step_tokens, runner.max_samples)
        self.runner = runner
        self.second_tier = None if file_tier is None else SecondTier(file_tier, runner, clock=clock)
        evicting = None if self.second_tier is None else self.second_tier.keep
        self.pool = BlockPool(runner.num_blocks, evicting, pin_share=config.pin_share)
        self._names = BlockNames(model_key)
        self.exchange = KVExchange(runner, self.pool, self._names)
        self.exports = Exports(runner, self.pool)
        self._clock = clock
        self._capacity = Capacity(config, clock)
        self._masks = Masks(clock)
        drafts = config.max_draft_tokens if runner.batch_invariant else 0
        self._price = StepPrice()
        self._speculator = Speculator(drafts, self._price) if drafts else None
        self._launcher: OverlappingRunner = OneByOne(runner)
        if self._speculator is None and isinstance(runner, OverlappingRunner):
            self._launcher = runner
        self._scheduler = Scheduler(
            self.pool,
            names=self._names,
            max_running=max_running,
            max_step_tokens=step_tokens,
            max_gap_seconds=config.max_gap_seconds,
            max_samples=runner.max_samples,
            price=self._price,
            speculator=self._speculator,
            num_parts=1 if self._launcher.feeds else self._launcher.steps_ahead + 1,
        )
        self._batches = BatchBuilder(max_running, step_tokens, runner.model.max_context)
        self._outputs = OutputBuilder(runner, self._batches, self._masks)
        self._sequences: dict[str, Sequence] = {}
        self._ended: list[Output] = []  # between steps; handed out by the next
        self._arrivals = 0
        self._tally = Tally()
        self._under_way: deque[LaunchedStep] = deque()  # the oldest first
        self._step_started = self._step_ended = clock()

    def share(self, token_ids: Iterable[int]) -> int:
        """Let every tenant find this prompt's blocks in the cache once they are computed; return
        how many full blocks it has. Before the first request."""
        return self._names.share(np.fromiter(token_ids, np.int32))

    # --- sequences come and go -------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Check and queue a sequence. Raises RequestRejected or EngineOverloaded."""
        self.admit(sequence)
        self.enqueue(sequence)

    def admit(self, sequence: Sequence) -> None:
        """Check a sequence and take its place: the first half of `add`. From any thread."""
        check_sequence(sequence, self.runner.model, self.pool.num_blocks)
        reject_if_busy = sequence.request.reject_if_busy
        self._capacity.admit(sequence.id, sequence.tenant, reject_if_busy=reject_if_busy)

    def enqueue(self, sequence: Sequence) -> None:
        """Queue an admitted sequence for the next step: the second half of `add`."""
        started = self._clock()
        if num_blocks := len(sequence.kv):
            self.exchange.adopt(sequence)
            if self.second_tier is not None:
                self.second_tier.adopted(num_blocks, self._clock() - started)
        sequence.arrive(self._arrivals, started, watches_runs=self._speculator is not None)
        self._arrivals += 1
        self._sequences[sequence.id] = sequence
        self._scheduler.add(sequence)
        if sequence.output_tokens:
            self._catch_up(sequence)

    def _catch_up(self, sequence: Sequence) -> None:
        """Take up the output of an earlier attempt."""
        try:
            self._masks.catch_up(sequence)
        except GrammarError as error:
            self._end_early(sequence, "cancelled", str(error))
            return
        reason = finish_reason(sequence)
        if reason is not None:  # that attempt got everything but this news
            self._end_early(sequence, reason)

    def restore(self, sequence: Sequence) -> Future[tuple[KVBlock, ...]] | None:
        """Start to read what the second tier has for a sequence which brings no KV; None when it
        should be queued as it is. From any thread, before it is queued."""
        tier = self.second_tier
        if tier is None or tier.is_empty or sequence.kv:
            return None
        names = sequence.prefix_digests(self._names)
        if self.pool.match(names) == len(names):
            return None
        return tier.restore(self.pool, names, self._price.per_prompt_token)

    def is_admitted(self, sequence_id: str) -> bool:
        """Return whether the sequence has a place and has not ended. From any thread."""
        return sequence_id in self._capacity

    def abort(self, sequence_id: str) -> None:
        """End a sequence and free its blocks; the next step says "cancelled". Unknown: ignored."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._end_early(sequence, "cancelled")

    def abort_all(self) -> list[Output]:
        """End every sequence; return the last outputs that were not handed out yet."""
        for sequence_id in list(self._sequences):
            self.abort(sequence_id)
        self.exports.clear()
        ended, self._ended = self._ended, []
        return ended

    @property
    def has_work(self) -> bool:
        """Return whether `step` would do anything."""
        return bool(self._sequences or self._ended or self.exports.open or self._under_way)

    # --- the heartbeat ---------------------------------------------------------------------------

    def step(self) -> list[Output]:
        """Run one step; return what one made, of each sequence at most one output."""
        outputs, self._ended = self._ended, []
        is_launched = self._launch()
        if self.exports.open:  # beside what is under way
            self.exports.advance()
        if is_launched:
            if len(self._under_way) > self._launcher.steps_ahead:
                outputs += self._collect()
        elif self._under_way:  # its tokens are needed to go on
            outputs += self._collect()
            self._launch()
        return outputs

    def _launch(self) -> bool:
        """Plan a step and give it to the runner; False when none can run, or may yet."""
        if any(step.holds_next_up(feeds=self._launcher.feeds) for step in self._under_way):
            return False
        if self._masks.stale:
            for sequence, error in self._masks.fill():
                self._end_early(sequence, "cancelled", str(error))
        if self._launcher.feeds and self._under_way:
            self._under_way[-1].expect(self._lives)
        started = self._step_started = self._clock()
        rows = self._scheduler.schedule(started)
        for row in rows:
            if row.starts_inside_block and not self.exchange.write_tail(row.sequence):
                self._scheduler.put_back(row.sequence)
        rows = [row for row in rows if row.is_placed]
        if not rows:
            return False
        self._launcher.launch(self._batches.build(rows))
        self._scheduler.launch(rows)
        self._under_way.append(LaunchedStep(rows, started))
        return True

    def _collect(self) -> list[Output]:
        """Wait for the oldest step under way, and take in what it made."""
        step = self._under_way.popleft()
        result = self._launcher.collect()
        token_ids = result.token_ids.tolist()
        if any(row.num_drafts for row in step.rows):
            accept(step.rows, token_ids)
        now = self._clock()
        seconds = now - max(step.started, self._step_ended)
        self._step_ended = now
        live = [row for row in step.rows if self._lives(row.sequence)]
        self._scheduler.settle(live, seconds)
        self._tally.add_step(live, seconds)
        outputs: list[Output] = []
        sample = 0
        for row in step.rows:
            samples = range(sample, sample + row.num_samples)
            sample, sequence = samples.stop, row.sequence
            if not self._lives(sequence):
                continue
            if sequence.expected >= 0:  # it comes now
                sequence.forget_expected()
            kv = self.exchange.exported(row) if sequence.is_exporting else ()
            if row.num_targets or row.makes_token or kv:
                output = self._outputs.output(row, result, samples, token_ids, kv)
                if output.finish_reason is not None:
                    self._end(sequence)
                outputs.append(output)
        return outputs

    def _lives(self, sequence: Sequence) -> bool:
        """Return whether it has not ended."""
        return self._sequences.get(sequence.id) is sequence

    def _end_early(
        self, sequence: Sequence, reason: FinishReason, failure: str | None = None
    ) -> None:
        """End a sequence between steps; the next step hands out its last output."""
        self._end(sequence)
        self._ended.append(OutputBuilder.last(sequence, reason, failure))

    def _end(self, sequence: Sequence) -> None:
        """Free all that a sequence holds. What is under way may still write to its blocks, before
        anybody else does."""
        sequence.end(self._clock())
        self._scheduler.remove(sequence)
        self._batches.forget(sequence)
        if sequence.matcher is not None:
            self._masks.forget(sequence)
        if self._speculator is not None:
            self._speculator.acceptance.pop(sequence, None)
        del self._sequences[sequence.id]
        self._capacity.release(sequence.id)

    # --- looking in ------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Return the figures of now. From any thread; during a step they may be from its middle."""
        return self._tally.statistics(
            self.pool,
            self._scheduler,
            filed=self.second_tier,
            output_tokens=self._outputs.num_tokens,
            drafts=self._speculator,
        )

    def load(self) -> Load:
        """Return what is left to do. On the engine's thread, between steps: it looks at every
        sequence."""
        return self._tally.load(
            self._sequences.values(),
            free_tokens=self.pool.num_idle * BLOCK_SIZE,
            age=self._clock() - self._step_started,
        )

    def save_cache(self, seconds: float) -> None:
        """Put what the prefix cache holds into the second tier: for a start after this stop."""
        if self.second_tier is not None:
            self.second_tier.save(self.pool, seconds)

    def close(self) -> None:
        """Release the runner's threads and memory. The engine is not used again."""
        if self.second_tier is not None:
            self.second_tier.close()
        self.runner.close()
