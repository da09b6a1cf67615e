"""The dialect-free middle: a `Job` goes to the region, pieces of text come back.

    Job ── start ──▶ Choices ── pieces ──▶ (index, Piece) … ── usage

Everything that a caller can get wrong has been refused before; what `start` raises is about the
model's node (`Overloaded`, `Unavailable`, `PromptTooLong`) and still becomes an HTTP status.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from skerry.errors import SkerryError, Unavailable
from skerry.wire import FinishReason, PromptTokensDetails, TokenLogprob, Usage
from skerry_edge.edge import Edge
from skerry_edge.metrics import EdgeMetrics
from skerry_edge.text import TextModel
from skerry_edge.transcript import Transcript
from skerry_regions.catalog import ModelSpec
from skerry_regions.client import TokenStream
from skerry_regions.protocol import Done, PhaseUsage, Sampling, Submit

Clock = Callable[[], float]  # seconds, monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What both dialects make of a request. `sampling.choice` is set per choice."""

    model: ModelSpec
    text: TextModel
    prompt_ids: list[int]
    sampling: Sampling
    stops: tuple[str, ...] = ()
    num_choices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Whose request it is, and how long it may take."""

    request_id: str
    tenant: str
    started: float  # on the edge's clock
    seconds_left: float


@dataclass(slots=True)
class Piece:
    """What one step added to one choice. The last one of a choice has a finish reason."""

    text: str
    logprobs: list[TokenLogprob]
    finish_reason: FinishReason | None = None


class Meter:
    """What the metrics learn of one choice, whichever way it ends."""

    def __init__(self, metrics: EdgeMetrics, model: str, started: float, clock: Clock) -> None:
        self._metrics = metrics
        self._model = model
        self._started = started
        self._clock = clock
        self._last_step: float | None = None
        self._outcome_known = False

    def step(self) -> None:
        now = self._clock()
        if self._last_step is None:
            self._metrics.time_to_first_token.observe(now - self._started, self._model)
        else:
            self._metrics.inter_token_latency.observe(now - self._last_step, self._model)
        self._last_step = now

    def cost(self, usage: PhaseUsage) -> None:
        self._metrics.cached_tokens.add(usage.cached_tokens, self._model)
        self._metrics.queue_time.observe(usage.queue_seconds, self._model)
        self._metrics.prefill_time.observe(usage.prefill_seconds, self._model)
        self._metrics.decode_time.observe(usage.decode_seconds, self._model)

    def finished(self, reason: str) -> None:
        self._outcome_known = True
        self._metrics.generations.add(1, self._model, reason)
        self._metrics.latency.observe(self._clock() - self._started, self._model)

    def failed(self, code: str) -> None:
        self._outcome_known = True
        self._metrics.generations_failed.add(1, self._model, code)

    def ended(self, num_tokens: int) -> None:
        self._metrics.output_tokens.add(num_tokens, self._model)
        if not self._outcome_known:
            self._metrics.generations.add(1, self._model, "abort")


class Generation:
    """One choice: a region's stream of token ids, turned into pieces of text."""

    def __init__(self, stream: TokenStream, transcript: Transcript, meter: Meter) -> None:
        self._stream = stream
        self._transcript = transcript
        self._meter = meter
        self.cached_tokens = 0

    @property
    def num_tokens(self) -> int:
        return self._transcript.num_tokens

    def abort(self) -> None:
        """Stop computing. A plain call, because an `await` while cancelled is cancelled again."""
        self._stream.abort()

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Pieces in order; empty ones are left out, except the last, which says why it ended."""
        transcript = self._transcript
        try:
            async for event in self._stream:
                if isinstance(event, Done):
                    self.cached_tokens = event.usage.cached_tokens
                    self._meter.cost(event.usage)
                    yield self._last_piece(event.finish_reason)
                    return
                if transcript.stopped or not event.token_ids:
                    continue  # computed before the node heard of the abort: not part of the answer
                self._meter.step()
                text, logprobs = transcript.push(event.token_ids, event.logprobs)
                if transcript.stopped:
                    self.abort()  # and wait for Done, which knows the cached tokens
                if text or logprobs:
                    yield Piece(text, logprobs)
            yield self._last_piece("cancelled")  # a region may end an aborted stream without Done
        except SkerryError as exc:
            self._meter.failed(exc.code)
            raise
        finally:
            self.abort()
            self._meter.ended(self.num_tokens)

    def _last_piece(self, reason: str) -> Piece:
        text, logprobs = self._transcript.finish()
        if self._transcript.stopped:
            reason = "stop"
        if reason == "cancelled":
            raise Unavailable("The model's node stopped before the answer was complete.")
        self._meter.finished(reason)
        return Piece(text, logprobs, "stop" if reason == "stop" else "length")


class Choices:
    """The choices of one request, side by side. Whoever has them must `close` them."""

    def __init__(
        self, generations: Sequence[Generation], prompt_tokens: int, metrics: EdgeMetrics
    ) -> None:
        self._generations = generations
        self._prompt_tokens = prompt_tokens
        self._metrics = metrics
        self._closed = False
        metrics.in_progress += 1

    def close(self) -> None:
        """Abort what still runs and give the place back. Idempotent and synchronous."""
        if not self._closed:
            self._closed = True
            self._metrics.in_progress -= 1
            for generation in self._generations:
                generation.abort()

    def usage(self) -> Usage:
        """Tokens so far: the prompt once, the output of every choice."""
        output = sum(generation.num_tokens for generation in self._generations)
        cached = max(generation.cached_tokens for generation in self._generations)
        return Usage(
            self._prompt_tokens,
            output,
            self._prompt_tokens + output,
            PromptTokensDetails(cached),
        )

    async def pieces(self) -> AsyncGenerator[tuple[int, Piece]]:
        """(choice index, piece) as they come."""
        if len(self._generations) == 1:
            async with aclosing(self._generations[0].pieces()) as pieces:
                async for piece in pieces:
                    yield 0, piece
            return
        arrived: asyncio.Queue[tuple[int, Piece] | BaseException | None] = asyncio.Queue(
            maxsize=len(self._generations)
        )
        tasks = [
            asyncio.create_task(_pump(index, generation, arrived))
            for index, generation in enumerate(self._generations)
        ]
        try:
            running = len(tasks)
            while running:
                match await arrived.get():
                    case None:
                        running -= 1
                    case BaseException() as exc:
                        raise exc
                    case item:
                        yield item
        finally:
            for task in tasks:
                task.cancel()


async def _pump(
    index: int,
    generation: Generation,
    arrived: asyncio.Queue[tuple[int, Piece] | BaseException | None],
) -> None:
    try:
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                await arrived.put((index, piece))
        await arrived.put(None)
    except Exception as exc:
        await arrived.put(exc)


async def start(edge: Edge, job: Job, call: Call) -> Choices:
    """Place every choice. Raises what `RegionClient.generate` raises, and then nothing runs."""
    edge.check_room()
    stop_ids = frozenset(job.sampling.stop_token_ids)
    generations: list[Generation] = []
    try:
        for choice in range(job.num_choices):
            stream = await edge.region.generate(submission(edge, job, call, choice))
            transcript = Transcript(job.text, stop_token_ids=stop_ids, stops=job.stops)
            meter = Meter(edge.metrics, job.model.id, call.started, edge.clock)
            generations.append(Generation(stream, transcript, meter))
    except BaseException as exc:
        for generation in generations:
            generation.abort()
        if isinstance(exc, SkerryError):
            edge.metrics.generations_failed.add(1, job.model.id, exc.code)
        raise
    edge.metrics.prompt_tokens.add(len(job.prompt_ids), job.model.id)
    return Choices(generations, len(job.prompt_ids), edge.metrics)


def submission(edge: Edge, job: Job, call: Call, choice: int) -> Submit:
    """The frame for one choice. `stream` is assigned by the region's client."""
    return Submit(
        stream=1,
        request_id=call.request_id,
        model=job.model.id,
        prompt_ids=job.prompt_ids,
        sampling=msgspec.structs.replace(job.sampling, choice=choice),
        tenant=call.tenant,
        cache_key=edge.cache_key(call.tenant),
        seconds_left=call.seconds_left,
    )
