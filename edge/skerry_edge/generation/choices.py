"""The dialect-free middle: a `Job` goes to the region, pieces of text come back.

    Job ── start ──▶ Choices ── pieces ──▶ (index, Piece) … ── usage

Everything that a caller can get wrong has been refused before; what `start` raises is about the
model's node (`Overloaded`, `Unavailable`, `PromptTooLong`) and still becomes an HTTP status.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from skerry.errors import InternalError, RequestError, SkerryError, Unavailable
from skerry.wire import FinishReason, PromptTokensDetails, TokenLogprob, Usage
from skerry_edge.gate.admission import Place
from skerry_edge.gate.auth import UNCAPPED, Caps
from skerry_edge.gate.entrance import enter
from skerry_edge.generation.edge import Edge
from skerry_edge.internal import Priority
from skerry_edge.ledger.books import Books, open_books
from skerry_edge.ledger.idempotency import IdempotencyKey
from skerry_edge.ledger.response_cache import CachePolicy
from skerry_edge.output.tool_parser import CallDelta, ToolParser
from skerry_edge.output.tools import Family
from skerry_edge.telemetry import tracing
from skerry_edge.telemetry.choice_trace import ChoiceTrace
from skerry_edge.telemetry.meter import Meter
from skerry_edge.telemetry.metrics import EdgeMetrics
from skerry_edge.text.model import TextModel
from skerry_edge.text.transcript import Transcript
from skerry_regions.models.catalog import ModelSpec
from skerry_regions.wire import protocol
from skerry_regions.wire.client import Explained, TokenStream
from skerry_regions.wire.protocol import Done, GrammarSpec, PhaseUsage, Sampling, Submit

MAX_LOGGED_PROMPT = 8192  # characters

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every dialect makes of a prompt. `sampling.choice` is set per choice."""

    model: ModelSpec
    text: TextModel
    prompt_ids: list[int]
    sampling: Sampling
    stops: tuple[str, ...] = ()
    num_choices: int = 1
    grammar: GrammarSpec | None = None  # that the output follows
    tools: Family | None = None  # how calls are written, where there may be any
    tells_stop_token: bool = False  # in the logprobs
    seeded: bool = False  # by the caller
    prompt_logprobs: int | None = None  # k: tell each prompt token's and the k most likely tokens'


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Whose request it is, and how long it may take."""

    request_id: str
    tenant: str
    started: float  # on the edge's clock, as are its deadlines
    deadline: float  # the whole answer is out by then
    begin_by: float = math.inf  # the caller waits no longer for the answer to begin
    residency: str | None = None  # zone that it must not leave
    explain: Callable[[str], None] | None = None  # wants to know why it runs where it does
    priority: Priority = "interactive"
    token: str = ""  # id of the API token
    cache: CachePolicy | None = None  # None: the response cache has no part in it
    idempotency: IdempotencyKey | None = None
    caps: Caps = UNCAPPED  # of what the API token may spend
    headers: dict[str, str] = field(default_factory=dict)  # of the answer, until it begins
    reject_if_busy: bool = False  # rather than wait for a place in an engine
    mixed_builds: bool = False  # consents to KV of another numeric build
    affinity: bytes = b""  # the session that it belongs to
    pin_seconds: float = 0.0  # that its prompt stays cached


@dataclass(slots=True)
class Piece:
    """What one step added to one choice. The last one of a choice has a finish reason."""

    text: str
    logprobs: list[TokenLogprob]
    finish_reason: FinishReason | None = None
    matched_stop: str | None = None  # the stop string that ended it, in the last piece
    offsets: list[int] = field(default_factory=list)  # of each logprob's token in the output's text
    prompt_logprobs: list[protocol.TokenLogprob] = field(default_factory=list)  # in pieces of these
    calls: list[CallDelta] = field(default_factory=list)  # of tools


class Generation:
    """One choice: a region's stream of token ids, turned into pieces of text."""

    def __init__(
        self,
        stream: TokenStream,
        transcript: Transcript,
        meter: Meter,
        parser: ToolParser | None = None,
        explain: Callable[[str], None] | None = None,
        *,
        noted: ChoiceTrace,
    ) -> None:
        self._stream = stream
        self._explain = explain
        self._explained = ""
        self._noted = noted
        self._closed = False
        self._transcript = transcript
        self._meter = meter
        self._parser = parser
        self.usage: PhaseUsage | None = None  # known when it has ended well
        self.finish_reason: FinishReason | None = None  # in the same case
        self.has_failed = False
        self._ended_by: SkerryError | None = None  # on the platform's part

    @property
    def num_tokens(self) -> int:
        return self._transcript.num_tokens

    @property
    def cached_tokens(self) -> int:
        return 0 if self.usage is None else self.usage.cached_tokens

    def abort(self) -> None:
        """Stop computing. A plain call, because an `await` while cancelled is cancelled again."""
        self._stream.abort()

    def end(self, error: SkerryError) -> None:
        """Stop computing, and let the answer end with this error."""
        self._ended_by = error
        self.abort()

    def explain(self) -> None:
        """Tell who wants to know why it runs where it does, and again after it moved."""
        if self._explain is None or not isinstance(self._stream, Explained):
            return
        if self._stream.explanation != self._explained:
            self._explained = self._stream.explanation
            self._explain(self._explained)

    def close(self) -> None:
        """It is over: abort what runs, count it, tell the trace. Idempotent and synchronous."""
        self.abort()
        if not self._closed:
            self._closed = True
            self._meter.attempted(self._noted.attempts)
            self._noted.end(self._meter.outcome, self.num_tokens)

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Pieces in order; empty ones are left out, except the last, which says why it ended."""
        transcript = self._transcript
        try:
            async for event in self._stream:
                self.explain()
                if isinstance(event, Done):
                    self.usage = event.usage
                    self._meter.cost(event.usage)
                    yield self._last_piece(event.finish_reason)
                    return
                if event.prompt_logprobs:
                    yield Piece("", [], prompt_logprobs=event.prompt_logprobs)
                if transcript.stopped or not event.token_ids:
                    continue  # computed before the node heard of the abort: not part of the answer
                self._meter.step()
                text, logprobs = transcript.push(event.token_ids, event.logprobs)
                if transcript.stopped:
                    self.abort()  # and wait for Done, which knows the cached tokens
                calls: list[CallDelta] = []
                if self._parser is not None:
                    text, calls = self._parser.push(text)
                if text or logprobs or calls:
                    yield Piece(text, logprobs, offsets=transcript.offsets, calls=calls)
            yield self._last_piece("cancelled")  # a region may end an aborted stream without Done
        except SkerryError as exc:
            self.has_failed = not isinstance(exc, RequestError)  # else the caller's own limit
            self._meter.failed(exc.code)
            raise
        except Exception:  # a bug of ours, which nobody pays for
            self.has_failed = True
            self._meter.failed(InternalError.code)
            raise
        finally:
            self.abort()
            self._meter.ended(self.num_tokens)

    def _last_piece(self, reason: str) -> Piece:
        text, logprobs = self._transcript.finish()
        if self._transcript.stopped:
            reason = "stop"
        if reason == "cancelled":
            raise self._ended_by or Unavailable(
                "The model's node stopped before the answer was complete."
            )
        self._meter.finished(reason)
        finish_reason: FinishReason = "stop" if reason == "stop" else "length"
        calls: list[CallDelta] = []
        if self._parser is not None:
            said, calls = self._parser.push(text)
            rest, more = self._parser.finish()
            text, calls = said + rest, calls + more
            if self._parser.num_calls and finish_reason == "stop":
                finish_reason = "tool_calls"
        self.finish_reason = finish_reason
        transcript = self._transcript
        return Piece(
            text,
            logprobs,
            finish_reason,
            transcript.matched_stop,
            transcript.offsets,
            calls=calls,
        )


class Choices:
    """The choices of one request, side by side. Whoever has them must `close` them.

    Of several prompts, the choices of the first come first.
    """

    def __init__(
        self,
        by_prompt: Sequence[Sequence[Generation]],
        prompt_tokens: int,
        metrics: EdgeMetrics,
        books: Books,
        place: Place,
    ) -> None:
        self._by_prompt = by_prompt
        self._generations = [each for generations in by_prompt for each in generations]
        self._prompt_tokens = prompt_tokens
        self._metrics = metrics
        self._books = books
        self._place = place
        place.when_ended(self._end)
        self._closed = False
        metrics.in_progress += 1
        books.admit(self._generations)

    def close(self) -> None:
        """Abort what still runs and give the place back. Idempotent and synchronous."""
        if not self._closed:
            self._closed = True
            self._metrics.in_progress -= 1
            for generation in self._generations:
                generation.close()
            self._books.close(self._by_prompt)
            self._leave()

    def _leave(self) -> None:
        """Give the place back, and what was reserved and not used."""
        if self._books.is_hit or any(each.has_failed for each in self._generations):
            self._place.leave()
        else:
            usage = self.usage()
            cached = usage.prompt_tokens_details.cached_tokens
            self._place.leave(usage.prompt_tokens, usage.completion_tokens, cached)

    def _end(self, error: SkerryError) -> None:
        for generation in self._generations:
            generation.end(error)

    def usage(self) -> Usage:
        """Tokens so far: each prompt once, the output of every choice."""
        output = sum(generation.num_tokens for generation in self._generations)
        cached = sum(max(each.cached_tokens for each in choices) for choices in self._by_prompt)
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


async def start(edge: Edge, jobs: Sequence[Job], call: Call) -> Choices:
    """Place every choice of a request's jobs, one per prompt, all for the same model.

    Raises what `RegionClient.generate` raises, or `IdempotencyMismatch`. Then, and when it is
    cancelled, nothing runs.
    """
    if edge.log_prompts:
        _log_prompts(jobs)
    model = jobs[0].model
    with tracing.span("admission"):
        place = await enter(edge, model, call, *_most_tokens(jobs))
    by_prompt: list[list[Generation]] = []
    try:
        books = await open_books(edge, jobs, call)
        for number, job in enumerate(books.jobs):
            by_prompt.append([])
            for choice in range(job.num_choices):
                noted = ChoiceTrace(tracing.current(), job.model.id, number, choice)
                stream: TokenStream | None = books.replay()
                if stream is None:
                    submit = submission(edge, job, call, noted, choice, number)
                    stream = books.record(await noted.placed(edge.region.generate(submit)))
                generation = _generation(edge, job, call, stream, noted, is_hit=books.is_hit)
                by_prompt[-1].append(generation)
    except BaseException as exc:
        for generations in by_prompt:
            for generation in generations:
                generation.close()
        place.leave()
        if isinstance(exc, SkerryError):
            edge.metrics.generations_failed.add(1, model.id, exc.code)
        raise
    prompt_tokens, _ = _most_tokens(jobs)
    if not books.is_hit:
        edge.metrics.prompt_tokens.add(prompt_tokens, model.id)
    return Choices(by_prompt, prompt_tokens, edge.metrics, books, place)


def _most_tokens(jobs: Sequence[Job]) -> tuple[int, int]:
    """Tokens of the prompts, and as many as may be generated."""
    prompt = sum(len(job.prompt_ids) for job in jobs)
    return prompt, sum(job.sampling.max_tokens * job.num_choices for job in jobs)


def _generation(
    edge: Edge, job: Job, call: Call, stream: TokenStream, noted: ChoiceTrace, *, is_hit: bool
) -> Generation:
    stop_ids = frozenset(job.sampling.stop_token_ids)
    transcript = Transcript(
        job.text,
        stop_token_ids=stop_ids,
        stops=job.stops,
        tells_stop_token=job.tells_stop_token,
    )
    metrics = EdgeMetrics() if is_hit else edge.metrics  # engines do nothing for a hit
    meter = Meter(metrics, job.model.id, call.started, edge.clock)
    parser = None if job.tools is None else ToolParser(job.tools)
    generation = Generation(stream, transcript, meter, parser, call.explain, noted=noted)
    generation.explain()
    return generation


def submission(
    edge: Edge, job: Job, call: Call, noted: ChoiceTrace, choice: int, prompt: int
) -> Submit:
    """The frame for one choice. `stream` is assigned by the region's client.

    Prompts of one request have ids of their own: a node takes a second attempt at the same id and
    choice for a successor of the first.
    """
    return Submit(
        stream=1,
        request_id=f"{call.request_id}-{prompt}" if prompt else call.request_id,
        model=job.model.id,
        prompt_ids=job.prompt_ids,
        sampling=msgspec.structs.replace(job.sampling, choice=choice),
        tenant=call.tenant,
        cache_key=edge.cache_key(call.tenant, call.residency),
        priority=call.priority,
        residency=call.residency,
        seconds_left=max(0.0, call.deadline - edge.clock()),
        reject_if_busy=call.reject_if_busy,
        mixed_builds=call.mixed_builds,
        affinity=call.affinity,
        pin_seconds=call.pin_seconds,
        prompt_logprobs=job.prompt_logprobs,
        grammar=job.grammar,
        trace=noted.context,
    )


def _log_prompts(jobs: Sequence[Job]) -> None:
    """What the operator asked for (`SKERRY_LOG_PROMPTS`): the only place where a text is logged."""
    for number, job in enumerate(jobs):
        text = job.text.detokenizer().push(job.prompt_ids)
        fields = {"model": job.model.id, "prompt": text[:MAX_LOGGED_PROMPT]}
        logger.info("prompt %d of the request", number, extra={"fields": fields})
