"""One simulated node: a FIFO of prefill work in chunks, a decode batch, an LRU cache of blocks.

Each step computes up to a chunk of prompt tokens (first come, first served) and one token of every
decoding stream, and takes the seconds that the true `NodeSpeed` says. While there is no prefill,
all steps up to the next finished stream are one event. Blocks become reusable when their prompt is
computed. The room of running sequences and the cache are not one pool: memory pressure of decode
is not simulated.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from random import Random

from bench.sim.block_cache import BlockCache
from bench.sim.events import Events
from bench.sim.work import Prefill, Step, Stream
from skerry_regions.prefix_news import PrefixPublisher
from skerry_regions.speeds import NodeSpeed, StepSample, attended_pairs
from skerry_regions.view import NodeLoad, Role

SAMPLE_SECONDS = 0.25  # a node sums up this much step time before it reports a sample


class SimNode:
    """A node of the simulation. All times in virtual seconds."""

    def __init__(
        self,
        name: str,
        role: Role,
        truth: NodeSpeed,
        events: Events,
        *,
        block_size: int,
        cache_blocks: int,
        rng: Random,
        noise: float = 0.0,
        measured: Callable[[StepSample], None] | None = None,
    ) -> None:
        self.name, self.truth = name, truth
        self.role: Role = role
        self.publisher = PrefixPublisher(name, 0)
        self.cache = BlockCache(cache_blocks, self.publisher)
        self.egress_free_at = 0.0  # when its outgoing link is idle
        self.step_times: list[tuple[float, int]] = []  # (seconds per step, tokens decoded)
        self.prompt_tokens = self.computed_tokens = 0
        self._events, self._block_size = events, block_size
        self._rng, self._noise, self._measured = rng, noise, measured
        self._sample = _Sums()
        self._queue: deque[Prefill] = deque()
        self._streams: list[tuple[int, int, Stream]] = []  # heap by last step, then by arrival
        self._joining: list[Stream] = []  # enter the batch at the next step
        self._num_joined = 0
        self._num_steps = 0  # decode steps so far
        self._context = 0  # tokens of all streams
        self._running: Step | None = None

    # ── work ────────────────────────────────────────────────────────────────────────────────────

    def prefill(self, job: Prefill) -> None:
        """Queue a prompt."""
        self._queue.append(job)
        self._wake()

    def decode(self, context: int, tokens: int, done: Callable[[], None]) -> None:
        """Decode `tokens` more tokens after `context`, from the next step on."""
        if tokens <= 0:
            done()
            return
        self._joining.append(Stream(context, tokens, done))
        self._wake()

    # ── what others may know ────────────────────────────────────────────────────────────────────

    @property
    def num_waiting(self) -> int:
        """Prompts not yet computed."""
        return len(self._queue)

    @property
    def num_active(self) -> int:
        """Requests here, in either phase."""
        return len(self._queue) + len(self._streams) + len(self._joining)

    @property
    def context_tokens(self) -> int:
        return self._context

    def outstanding_tokens(self) -> int:
        """Uncached tokens of all unfinished prompts, those computed already included."""
        return sum(job.remaining + job.computed for job in self._queue)

    def load(self) -> NodeLoad:
        """The residual queue, less the part of the running step that is over."""
        tokens = pairs = 0.0
        for job in self._queue:
            remaining = job.remaining
            tokens += remaining
            pairs += attended_pairs(remaining, job.prompt_tokens - remaining)
        step = self._running
        if step is not None and step.chunk:
            share = (self._events.now - step.start) / (step.end - step.start)
            tokens -= share * step.tokens
            pairs -= share * step.pairs
        return NodeLoad(
            prefill_tokens=max(tokens, 0.0),
            prefill_pairs=max(pairs, 0.0),
            streams=len(self._streams) + len(self._joining),
            context_tokens=self._context + sum(stream.context for stream in self._joining),
        )

    # ── steps ───────────────────────────────────────────────────────────────────────────────────

    def _wake(self) -> None:
        if self._running is None:
            self._start()
        elif not self._running.chunk:
            self._cut_short(self._running)

    def _start(self) -> None:
        """Begin the next step, or sleep until there is something to do."""
        self._join()
        now = self._events.now
        chunk = self._next_chunk(now)
        if not chunk and not self._streams:
            if self._queue:
                self._events.at(min(job.ready_at for job in self._queue), self._wake)
            return
        step = self._running = Step(
            start=now,
            end=now,
            count=1 if chunk else self._streams[0][0] - self._num_steps,
            chunk=chunk,
            tokens=sum(count for _, count in chunk),
            pairs=sum(attended_pairs(n, job.cached + job.computed) for job, n in chunk),
            factor=math.exp(self._rng.gauss(0.0, self._noise)) if self._noise else 1.0,
        )
        self._schedule(step, step.count)

    def _schedule(self, step: Step, count: int) -> None:
        step.count = count
        end = step.end = step.start + self._duration(step, count)
        self._events.at(end, lambda: self._finish(step, end))

    def _cut_short(self, burst: Step) -> None:
        """Work came: the burst ends with the step of it that is running now."""
        elapsed = self._events.now - burst.start
        count = bisect_left(range(burst.count), elapsed, key=lambda n: self._duration(burst, n))
        if count < burst.count:
            self._schedule(burst, max(count, 1))

    def _finish(self, step: Step, end: float) -> None:
        if self._running is not step or end != step.end:
            return  # it was cut short
        self._running = None
        self._account(step)
        self._num_steps += step.count
        self._context += len(self._streams) * step.count
        while self._streams and self._streams[0][0] <= self._num_steps:
            stream = heapq.heappop(self._streams)[2]
            self._context -= stream.context + stream.tokens
            stream.done()
        for job, count in step.chunk:
            job.computed += count
            if not job.remaining:
                self._queue.remove(job)
                self.cache.insert(job.blocks)
                job.done()
        if self._running is None:
            self._start()

    def _join(self) -> None:
        for stream in self._joining:
            self._num_joined += 1
            last = self._num_steps + stream.tokens
            heapq.heappush(self._streams, (last, self._num_joined, stream))
            self._context += stream.context
        self._joining.clear()

    def _next_chunk(self, now: float) -> list[tuple[Prefill, int]]:
        tokens, chunk = self.truth.chunk_tokens, []
        seconds = math.inf
        if self._streams:
            seconds = self.truth.room_seconds(len(self._streams), self._context)
        for job in self._queue:
            if job.ready_at > now:
                continue
            if not job.started:
                self._begin(job)
            price = self.truth.per_token + self.truth.per_pair * (job.cached + job.computed)
            count = min(job.remaining, tokens)
            if count * price > seconds:
                count = math.ceil(seconds / price)
            chunk.append((job, count))
            tokens -= count
            seconds -= count * price
            if tokens <= 0 or seconds <= 0:
                break
        return chunk

    def _begin(self, job: Prefill) -> None:
        hit = self.cache.match(job.blocks) * self._block_size
        job.cached = min(hit, job.prompt_tokens - 1)
        job.started = True
        self.prompt_tokens += job.prompt_tokens
        self.computed_tokens += job.prompt_tokens - job.cached

    def _looked_at(self, count: int) -> float:
        """Context tokens that `count` decode steps from now on look at."""
        return self._context * count + len(self._streams) * count * (count - 1) / 2

    def _duration(self, step: Step, count: int) -> float:
        truth = self.truth
        return step.factor * (
            count * (truth.base + truth.per_stream * len(self._streams))
            + truth.per_context * self._looked_at(count)
            + truth.per_token * step.tokens
            + truth.per_pair * step.pairs
        )

    def _account(self, step: Step) -> None:
        """Before the batch changes: note what the step did and took."""
        streams, seconds = len(self._streams) * step.count, step.end - step.start
        if streams:
            self.step_times.append((seconds / step.count, streams))
        if self._measured is None:
            return
        self._sample.add(step, seconds, streams, self._looked_at(step.count))
        if self._sample.seconds >= SAMPLE_SECONDS:
            self._measured(self._sample.sample())
            self._sample = _Sums()


class _Sums:
    """A `StepSample` in the making."""

    def __init__(self) -> None:
        self._steps = self._new_tokens = self._streams = 0
        self._attended = self._context = self.seconds = 0.0

    def add(self, step: Step, seconds: float, streams: int, context: float) -> None:
        self._steps += step.count
        self._new_tokens += step.tokens
        self._attended += step.pairs
        self._streams += streams
        self._context += context
        self.seconds += seconds

    def sample(self) -> StepSample:
        return StepSample(
            steps=self._steps,
            seconds=self.seconds,
            new_tokens=self._new_tokens,
            attended=self._attended,
            streams=self._streams,
            context=self._context,
        )
