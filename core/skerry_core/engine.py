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

from skerry_core.admission import Admission, check_request
from skerry_core.batch import StepResult
from skerry_core.batching import BatchBuilder
from skerry_core.blocks import BlockPool
from skerry_core.config import BLOCK_SIZE, EngineConfig
from skerry_core.exports import Exports
from skerry_core.grammar_error import GrammarError
from skerry_core.handover import Handover
from skerry_core.names import BlockNames
from skerry_core.plan import Row
from skerry_core.request import FinishReason, KVBlock, Output, Request, TokenLogprobs, Usage
from skerry_core.runners.base import ModelRunner, OverlappingRunner
from skerry_core.sampling import clean, log_softmax
from skerry_core.scheduler import Scheduler
from skerry_core.second_tier import SecondTier
from skerry_core.sequence import Sequence
from skerry_core.speculation import Speculator, accept
from skerry_core.step_price import StepPrice

if TYPE_CHECKING:
    from skerry_core.file_tier import FileTier


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """An engine at one moment. Counters only grow."""

    running: int  # sequences that hold blocks
    waiting: int  # sequences queued
    blocks: int  # of KV memory: used + cached + free
    blocks_used: int
    blocks_cached: int  # idle, with a prefix that can be matched
    blocks_free: int
    blocks_filed: int  # in the second tier, whether or not in memory as well
    steps: int  # counter; stands still while there is work: the engine hangs
    computed_tokens: int  # counter: prompt and output tokens that ran through the model, and stay
    output_tokens: int  # counter: tokens made
    cache_query_tokens: int  # counter: tokens that were looked for in the prefix cache
    cache_hit_tokens: int  # counter: tokens that did not run, thanks to the prefix cache
    restored_blocks: int  # counter: read from the second tier
    preemptions: int  # counter
    drafted_tokens: int  # counter: of those that ran, see `speculation`
    accepted_tokens: int  # counter: of those drafted, and made so
    busy_seconds: float  # counter: engine seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What an engine has to do, and sums over all its steps from which its speed can be learned."""

    prefill_tokens: int  # prompt tokens still to compute, waiting or running
    prefill_pairs: float  # (query, key) pairs of their causal attention
    streams: int  # sequences that decode
    context_tokens: int  # tokens those look at in one step
    free_tokens: int  # KV room that no running sequence holds
    age: float  # seconds: what was asked for since then is not in it
    steps: int
    seconds: float
    new_tokens: int  # prompt tokens computed
    attended: float  # pairs of those
    stream_steps: int  # sum over steps of the sequences that decoded
    context_steps: int  # sum over steps of the tokens they looked at


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


MASK_SECONDS = 0.02  # of a step, for masks and for choosing under them; who finds none left waits
NOT_A_NUMBER = "the model's output for this request is not a number"  # a failure


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
        self._stale: dict[Sequence, None] = {}  # their masks are to be computed, in this order
        self._ended: list[Output] = []  # between steps; handed out by the next
        self._arrivals = 0
        self._steps = 0
        self._computed_tokens = 0
        self._output_tokens = 0
        self._busy_seconds = 0.0
        self._overlapping: OverlappingRunner | None = None
        if self._speculator is None and isinstance(runner, OverlappingRunner) and runner.overlaps:
            self._overlapping = runner
        self._under_way: _Step | None = None
        self._step_started = self._step_ended = clock()
        self._new_tokens = self._stream_steps = self._context_steps = 0
        self._attended = 0.0

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
            reason = _finish_reason(sequence)
            if reason is not None:  # the earlier attempt got everything but this news
                self._end_early(sequence, reason)

    def _catch_up(self, sequence: Sequence) -> None:
        """Give a resumed request's matcher what it lacks of the transcript."""
        matcher = sequence.request.matcher
        if matcher is None:
            return
        try:
            for token_id in sequence.request.output_ids[matcher.num_tokens :]:
                matcher.advance(token_id)
        except GrammarError as error:
            self._end_early(sequence, "cancelled", str(error))
        else:
            self._stale[sequence] = None

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
        if self._stale:
            self._fill_masks()
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
        if not rows:
            return None
        self.handover.write_tails(rows)
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

    def _fill_masks(self) -> None:
        """Compute masks, the longest stale first, until the step's time is used up: for them, and
        for the choices that they make possible."""
        deadline = self._clock() + MASK_SECONDS
        while self._stale:
            sequence = next(iter(self._stale))
            del self._stale[sequence]
            matcher = sequence.request.matcher
            try:
                if matcher is not None:
                    matcher.fill()
            except GrammarError as error:
                self._end_early(sequence, "cancelled", str(error))
            deadline -= self._choice_seconds(sequence)
            if self._clock() >= deadline:
                return

    def _choice_seconds(self, sequence: Sequence) -> float:
        """What a sequence's next choice is likely to take: as long as its last one."""
        matcher = sequence.request.matcher
        if matcher is None or not matcher.looks_ahead(_tokens_left(sequence)):
            return 0.0
        return sequence.choice_seconds

    def _account(self, rows: list[Row], seconds: float) -> None:
        self._steps += 1
        self._busy_seconds += seconds
        rows = [row for row in rows if self._lives(row.sequence)]
        if rows:
            self._scheduler.settle(rows, seconds)
        self._computed_tokens += sum(row.end - row.start for row in rows)
        for row in rows:
            if row.is_decode:
                self._stream_steps += 1
                self._context_steps += row.start + 1
            else:
                self._new_tokens += row.num_tokens
                self._attended += _attended(row.start, row.num_tokens)

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
            told = tuple(_logprobs(result, s, request.prompt_logprobs) for s in targets)
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
            if _can_forbid_all(sequence):
                return token_id, "stop", None
            return token_id, "cancelled", NOT_A_NUMBER
        token_id, failure = self._take(sequence, token_id)
        self._batches.append(sequence, token_id)
        self._output_tokens += 1
        reason = _finish_reason(sequence) if failure is None else "cancelled"
        return token_id, reason, failure

    def _told(self, result: StepResult, sample: int, k: int, token_id: int) -> TokenLogprobs:
        """Logprobs of the token that was taken, which need not be the one that was sampled."""
        told = _logprobs(result, sample, k)
        if told.token_id == token_id:
            return told
        logprobs = log_softmax(clean(self.runner.last_logits()[sample]))
        return replace(told, token_id=token_id, logprob=float(logprobs[token_id]))

    def _take(self, sequence: Sequence, token_id: int) -> tuple[int, str | None]:
        """The token that a sequence goes on with, its grammar told; and what is wrong, or None."""
        request = sequence.request
        matcher = request.matcher
        if matcher is None:
            return token_id, None
        try:
            if request.exports_kv:  # one token of an output that is longer
                matcher.advance(token_id)
            else:
                started = self._clock()
                token_id = matcher.choose(token_id, _tokens_left(sequence))
                sequence.choice_seconds = self._clock() - started
        except GrammarError as error:
            return token_id, str(error)
        self._stale[sequence] = None
        return token_id, None

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
        self._stale.pop(sequence, None)
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
            steps=self._steps,
            computed_tokens=self._computed_tokens,
            output_tokens=self._output_tokens,
            cache_query_tokens=scheduler.num_cache_query_tokens,
            cache_hit_tokens=scheduler.num_cache_hit_tokens,
            restored_blocks=0 if filed is None else filed.restored,
            preemptions=scheduler.num_preemptions,
            drafted_tokens=0 if drafts is None else drafts.num_drafted,
            accepted_tokens=0 if drafts is None else drafts.num_accepted,
            busy_seconds=self._busy_seconds,
        )

    def load(self) -> Load:
        """What is left to do. On the engine's thread, between steps: it looks at every sequence."""
        decoding = [s for s in self._sequences.values() if s.is_decoding]
        prefilling = [s for s in self._sequences.values() if not s.is_decoding]
        return Load(
            prefill_tokens=sum(s.remaining for s in prefilling),
            prefill_pairs=sum(_attended(s.num_computed, s.remaining) for s in prefilling),
            streams=len(decoding),
            context_tokens=sum(s.num_tokens for s in decoding),
            free_tokens=self.pool.num_idle * BLOCK_SIZE,
            age=self._clock() - self._step_started,
            steps=self._steps,
            seconds=self._busy_seconds,
            new_tokens=self._new_tokens,
            attended=self._attended,
            stream_steps=self._stream_steps,
            context_steps=self._context_steps,
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


def _attended(start: int, num_tokens: int) -> float:
    """Pairs (query, key) of causal attention of `num_tokens` tokens after `start`."""
    return num_tokens * (start + (num_tokens + 1) / 2)


def _finish_reason(sequence: Sequence) -> FinishReason | None:
    """Whether the last token of the output, which it has, is the end."""
    sampling = sequence.request.sampling
    if int(sequence.tokens[-1]) in sampling.stop_token_ids and (
        sequence.num_output > sampling.min_tokens
    ):
        return "stop"
    matcher = sequence.request.matcher
    if matcher is not None and matcher.is_finished:
        return "stop"
    return "length" if sequence.num_output >= sampling.max_tokens else None


def _can_forbid_all(sequence: Sequence) -> bool:
    """Whether the request itself may leave no token possible: a grammar, stops that wait."""
    request = sequence.request
    return request.matcher is not None or sequence.num_output < request.sampling.min_tokens


def _logprobs(result: StepResult, sample: int, k: int | None) -> TokenLogprobs:
    """Logprobs of a sample's token and of its k most likely tokens."""
    return TokenLogprobs(
        token_id=int(result.token_ids[sample]),
        logprob=float(result.logprobs[sample]),
        top=tuple(
            zip(
                result.top_ids[sample, :k].tolist(),
                result.top_logprobs[sample, :k].tolist(),
                strict=True,
            )
        ),
    )


def _tokens_left(sequence: Sequence) -> int:
    """How many tokens may follow the next one."""
    return sequence.request.sampling.max_tokens - sequence.num_output - 1
