"""The heartbeat: schedule, build a batch, run it, update the sequences, hand out what was made.

With a runner that overlaps, a step is planned and launched while the one before it is computed. The
tokens that are being made have their places already, and the device puts them there. What cannot be
known yet is found out a step later: a sequence that ended meanwhile has run once more, for nothing.
A step whose tokens are needed to plan the next (see `Row.is_foreseeable`) is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from skerry_core.batch import StepResult
from skerry_core.blocks import BlockPool
from skerry_core.config import BLOCK_SIZE, EngineConfig
from skerry_core.engine.admission import Admission, check_request
from skerry_core.engine.batching import BatchBuilder
from skerry_core.engine.exports import Exports
from skerry_core.engine.figures import Load, Statistics, Tally
from skerry_core.engine.handover import Handover
from skerry_core.engine.masks import Masks
from skerry_core.engine.outputs import end_without_a_token, finish_reason, logprobs_of
from skerry_core.engine.plan import Row
from skerry_core.engine.scheduler import Scheduler
from skerry_core.engine.second_tier import SecondTier
from skerry_core.engine.sequence import Sequence
from skerry_core.engine.speculation import Speculator, accept
from skerry_core.engine.step_price import StepPrice
from skerry_core.grammar_error import GrammarError
from skerry_core.names import BlockNames
from skerry_core.request import FinishReason, KVBlock, Output, Request, TokenLogprobs, Usage
from skerry_core.runner import ModelRunner, OverlappingRunner
from skerry_core.sampling import clean, log_softmax

if TYPE_CHECKING:
    from skerry_core.kv.file_tier import FileTier


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that the runner was given."""

    rows: list[Row]
    started: float  # seconds of the engine's clock
    collect: Callable[[], StepResult]  # waits for it

    @property
    def is_foreseeable(self) -> bool:
        """Whether the next step can be planned before this one is computed."""
        return all(row.is_foreseeable for row in self.rows)


class Engine:
    """Runs requests on one runner, which it owns. Every call from one thread, except as stated.

    Each request that was added ends with exactly one `Output` that has a `finish_reason`.
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
        self.pool = BlockPool(runner.num_blocks)
        self.config = config
        self._names = BlockNames(model_key)
        self.handover = Handover(runner, self.pool, self._names)
        self.exports = Exports(runner, self.pool)
        self.second_tier: SecondTier | None = None
        if file_tier is not None:
            self.second_tier = SecondTier(file_tier, runner, self.pool)
            self.pool.evicting = self.second_tier.keep
        self._clock = clock
        self._admission = Admission(config, clock)
        self._masks = Masks(clock)
        drafts = config.max_draft_tokens if runner.batch_invariant else 0
        self._price = StepPrice()
        self._speculator = Speculator(drafts, self._price) if drafts else None
        self._scheduler = Scheduler(
            self.pool,
            names=self._names,
            max_running=max_running,
            max_step_tokens=step_tokens,
            max_gap_seconds=config.max_gap_seconds,
            max_samples=runner.max_samples,
            price=self._price,
            speculator=self._speculator,
        )
        self._batches = BatchBuilder(
            max_running=max_running,
            max_step_tokens=step_tokens,
            max_context=runner.model.max_context,
        )
        self._sequences: dict[str, Sequence] = {}
        self._ended: list[Output] = []  # between steps; handed out by the next
        self._arrivals = 0
        self._tally = Tally()
        self._overlapping: OverlappingRunner | None = None
        if self._speculator is None and isinstance(runner, OverlappingRunner) and runner.overlaps:
            self._overlapping = runner
        self._under_way: _Step | None = None
        self._step_started = self._step_ended = clock()

    def share(self, token_ids: Iterable[int]) -> int:
        """Let every tenant find this prompt's blocks in the cache once they are computed; how many
        full blocks it has. Before the first request."""
        return self._names.share(np.fromiter(token_ids, np.int32))

    # --- requests come and go --------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Check and queue a request. Raises RequestRejected or EngineOverloaded."""
        self.admit(request)
        self.enqueue(request)

    def admit(self, request: Request) -> None:
        """First half of `add`: check a request and take its place. From any thread."""
        check_request(request, self.runner.model, self.pool.num_blocks)
        self._admission.admit(request.id, request.tenant, reject_if_busy=request.reject_if_busy)

    def enqueue(self, request: Request) -> None:
        """Second half of `add`, for an admitted request: queue it for the next step."""
        started = self._clock()
        tail = self.handover.adopt(request)
        if request.kv and self.second_tier is not None:
            self.second_tier.adopted(len(request.kv), self._clock() - started)
        request = replace(request, kv=())  # adopted: let go of the bytes
        sequence = Sequence(request, arrival=self._arrivals, arrival_time=started)
        sequence.tail = tail
        self._arrivals += 1
        self._sequences[request.id] = sequence
        self._scheduler.add(sequence)
        if request.output_ids:
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

    def restore(self, request: Request) -> Future[tuple[KVBlock, ...]] | None:
        """Blocks that the second tier has for a request which brings none, on their way; None when
        it should be queued as it is. From any thread."""
        if self.second_tier is None or request.kv:
            return None
        names = self.handover.prefix_names(request)
        return self.second_tier.restore(names, self._price.per_prompt_token)

    def is_admitted(self, request_id: str) -> bool:
        """Whether the request has a place and has not ended. From any thread."""
        return request_id in self._admission

    def abort(self, request_id: str) -> None:
        """End a request and free its blocks; the next step says "cancelled". Unknown: ignored."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._end_early(sequence, "cancelled")

    def abort_all(self) -> list[Output]:
        """End every request; the last outputs of all that have not been told their end."""
        for request_id in list(self._sequences):
            self.abort(request_id)
        self.exports.clear()
        ended, self._ended = self._ended, []
        return ended

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return bool(self._sequences or self._ended or self.exports or self._under_way)

    # --- the heartbeat ---------------------------------------------------------------------------

    def step(self) -> list[Output]:
        """Run one step; what one made, of each request at most one output."""
        self.exports.advance()
        outputs, self._ended = self._ended, []
        before, self._under_way = self._under_way, None
        if before is not None and not before.is_foreseeable:
            outputs += self._finish(before)
            before = None
        for sequence, error in self._masks.fill():
            self._end_early(sequence, "cancelled", str(error))
        step = self._begin()
        if before is not None:
            outputs += self._finish(before)
        if step is not None and self._overlapping is None:
            outputs += self._finish(step)
        elif step is not None:
            self._under_way = step
            if step.is_foreseeable:
                self._expect(step)
        return outputs

    def _begin(self) -> _Step | None:
        """Plan a step and give it to the runner; None when nothing can run."""
        started = self._step_started = self._clock()
        rows = self._scheduler.schedule(started)
        for sequence in self.handover.write_tails(rows):
            self._scheduler.put_back(sequence)
        rows = [row for row in rows if row.is_placed]
        if not rows:
            return None
        batch = self._batches.build(rows)
        if self._overlapping is None:
            result = self.runner.execute(batch)
            return _Step(rows, started, lambda: result)
        self._overlapping.launch(batch)
        return _Step(rows, started, self._overlapping.collect)

    def _expect(self, step: _Step) -> None:
        """Go on as if a step were computed already."""
        sample = 0
        for row in step.rows:
            sample += row.num_samples
            if self._lives(row.sequence):
                row.sequence.num_computed = row.end
                if row.makes_token:
                    row.sequence.expect(sample - 1)

    def _finish(self, step: _Step) -> list[Output]:
        """Wait for a step, and take in what it made."""
        result = step.collect()
        accept(step.rows, result.token_ids.tolist())
        now = self._clock()
        self._account(step.rows, now - max(step.started, self._step_ended))
        self._step_ended = now
        return self._update(step.rows, result)

    def _lives(self, sequence: Sequence) -> bool:
        """Whether it has not ended."""
        return self._sequences.get(sequence.request.id) is sequence

    def _account(self, rows: list[Row], seconds: float) -> None:
        rows = [row for row in rows if self._lives(row.sequence)]
        if rows:
            self._scheduler.settle(rows, seconds)
        self._tally.add_step(rows, seconds)

    def _update(self, rows: list[Row], result: StepResult) -> list[Output]:
        outputs = []
        token_ids = result.token_ids.tolist()
        sample = 0
        for row in rows:
            samples = range(sample, sample + row.num_samples)
            sample = samples.stop
            if not self._lives(row.sequence):
                continue
            kv = self.handover.exported(row)
            if samples or kv:
                outputs.append(self._output(row, result, samples, token_ids, kv))
        return outputs

    def _output(
        self,
        row: Row,
        result: StepResult,
        samples: range,
        token_ids: list[int],
        kv: tuple[KVBlock, ...],
    ) -> Output:
        """Append what the row's samples made to its sequence, and tell it."""
        sequence = row.sequence
        request = sequence.request
        told: tuple[TokenLogprobs, ...] = ()
        if row.num_targets:
            targets = samples[: row.num_targets]
            told = tuple(logprobs_of(result, s, request.prompt_logprobs) for s in targets)
            sequence.num_prompt_logprobs += row.num_targets
        if not row.makes_token:
            return Output(request_id=request.id, token_ids=(), prompt_logprobs=told, kv=kv)
        made: list[int] = []
        logprobs: list[TokenLogprobs] = []
        k = request.sampling.logprobs
        reason: FinishReason | None = None
        failure: str | None = None
        for sample in samples[row.num_targets : row.num_targets + 1 + row.num_accepted]:
            token_id, reason, failure = self._go_on(sequence, token_ids[sample])
            if token_id >= 0:
                made.append(token_id)
                if k is not None:
                    logprobs.append(self._told(result, sample, k, token_id))
            if reason is not None:
                break
        return Output(
            request_id=request.id,
            token_ids=tuple(made),
            logprobs=tuple(logprobs),
            prompt_logprobs=told,
            kv=kv,
            finish_reason=reason,
            usage=None if reason is None else self._end(sequence),
            failure=failure,
        )

    def _go_on(
        self, sequence: Sequence, token_id: int
    ) -> tuple[int, FinishReason | None, str | None]:
        """Append a sampled token: the one that was taken, -1 for none; whether and why it ends."""
        if token_id < 0:  # no token is possible
            return token_id, *end_without_a_token(sequence)
        failure: str | None = None
        try:
            token_id = self._masks.take(sequence, token_id)
        except GrammarError as error:
            failure = str(error)
        self._batches.append(sequence, token_id)
        self._tally.output_tokens += 1
        if failure is not None:
            return token_id, "cancelled", failure
        return token_id, finish_reason(sequence), None

    def _told(self, result: StepResult, sample: int, k: int, token_id: int) -> TokenLogprobs:
        """Logprobs of the token that was taken, which need not be the one that was sampled."""
        told = logprobs_of(result, sample, k)
        if told.token_id == token_id:
            return told
        logprobs = log_softmax(clean(self.runner.last_logits()[sample]))
        return replace(told, token_id=token_id, logprob=float(logprobs[token_id]))

    def _end_early(
        self, sequence: Sequence, reason: FinishReason, failure: str | None = None
    ) -> None:
        """End a sequence between steps; the next step tells."""
        output = Output(
            request_id=sequence.request.id,
            token_ids=(),
            finish_reason=reason,
            usage=self._end(sequence),
            failure=failure,
        )
        self._ended.append(output)

    def _end(self, sequence: Sequence) -> Usage:
        """Free all that a sequence holds. What is under way may still write to its blocks, before
        anybody else does."""
        sequence.forget_expected()
        self._scheduler.remove(sequence)
        self._batches.forget(sequence)
        self._masks.forget(sequence)
        del self._sequences[sequence.request.id]
        self._admission.release(sequence.request.id)
        return sequence.usage(self._clock())

    # --- looking in ------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Figures of now. From any thread; during a step they may be from its middle."""
        pool, scheduler = self.pool, self._scheduler
        idle, cached = pool.num_idle, pool.num_cached
        filed = None if self.second_tier is None else self.second_tier.statistics()
        drafts = self._speculator
        return Statistics(
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            blocks=pool.num_blocks,
            blocks_used=pool.num_blocks - idle,
            blocks_cached=cached,
            blocks_free=idle - cached,
            blocks_filed=0 if filed is None else filed.blocks,
            steps=self._tally.steps,
            computed_tokens=self._tally.computed_tokens,
            output_tokens=self._tally.output_tokens,
            cache_query_tokens=scheduler.num_cache_query_tokens,
            cache_hit_tokens=scheduler.num_cache_hit_tokens,
            restored_blocks=0 if filed is None else filed.restored,
            preemptions=scheduler.num_preemptions,
            drafted_tokens=0 if drafts is None else drafts.num_drafted,
            accepted_tokens=0 if drafts is None else drafts.num_accepted,
            busy_seconds=self._tally.seconds,
        )

    def load(self) -> Load:
        """What is left to do. On the engine's thread, between steps: it looks at every sequence."""
        return self._tally.load(
            self._sequences.values(),
            free_tokens=self.pool.num_idle * BLOCK_SIZE,
            age=self._clock() - self._step_started,
        )

    def save_cache(self, seconds: float) -> None:
        """Put what the prefix cache holds into the second tier: for a start after this stop."""
        if self.second_tier is not None:
            self.second_tier.save(seconds)

    def close(self) -> None:
        """Release the runner's threads and memory. The engine is not used again."""
        if self.second_tier is not None:
            self.second_tier.close()
        self.runner.close()
