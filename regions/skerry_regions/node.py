"""One node: models on their worker threads, streams between them and whoever asked.

The one seam between the engine and the platform: core's exceptions become `skerry.errors` here, and
its outputs become events. All of a `Node` runs on one event loop; only `_Served.deliver` and
`.failed` run on an engine's thread, and they do nothing but cross over, once per step.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from skerry.errors import (
    InternalError,
    InvalidInput,
    ModelNotFound,
    Overloaded,
    PromptTooLong,
    RequestTimeout,
    SkerryError,
    Unavailable,
)
from skerry_core.encoder import Encoder
from skerry_core.engine import Engine
from skerry_core.grammar import Grammar, Matcher
from skerry_core.request import (
    EngineOverloaded,
    Output,
    Priority,
    Request,
    RequestRejected,
    RequestTooLong,
    SamplingParams,
    TokenLogprobs,
    Usage,
)
from skerry_core.worker import Worker, WorkerStopped
from skerry_regions.encoders import Encoding, ServedEncoder
from skerry_regions.encoders import Sink as EncoderSink
from skerry_regions.grammars import Grammars
from skerry_regions.handover import KVDesk, Outgoing
from skerry_regions.protocol import (
    MAX_MESSAGE,
    Accepted,
    Done,
    Embed,
    EngineBeat,
    Event,
    Failed,
    GrammarSpec,
    PhaseUsage,
    Report,
    Submit,
    TokenLogprob,
    Tokens,
)
from skerry_regions.reporting import Reporter, StepNews
from skerry_regions.transfer import Arrived, Made

logger = logging.getLogger(__name__)

NO_USAGE = PhaseUsage(
    prompt_tokens=0,
    cached_tokens=0,
    output_tokens=0,
    queue_seconds=0.0,
    prefill_seconds=0.0,
    decode_seconds=0.0,
)

Role = Literal["prefill", "decode", "hybrid"]
State = Literal["ready", "failed", "closed"]
Sink = Callable[[Accepted | Event], None]
"""Takes the events of one stream, on the event loop. It must not block and not raise.

`Accepted` comes only where `NodeStream.is_accepted` was not true from the start.
"""

PRIORITIES = {"interactive": Priority.INTERACTIVE, "batch": Priority.BATCH}
RESTART_SECONDS = 1.0  # advice to a client whose node is gone: time to place the request elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """One model of a node as `skerry status` shows it."""

    node: str
    pid: int
    role: Role
    region: str
    model: str
    state: State
    streams: int


class NodeStream:
    """One running attempt. Ends with exactly one `Done` or `Failed` in its sink."""

    __slots__ = (
        "_served",
        "arriving",
        "compiling",
        "deadline",
        "engine_id",
        "epoch",
        "in_engine",
        "is_accepted",
        "key",
        "next_index",
        "number",
        "outgoing",
        "sink",
    )

    def __init__(self, served: _Served, submit: Submit, engine_id: str, sink: Sink) -> None:
        self._served = served
        self.number = submit.stream
        self.engine_id = engine_id
        self.epoch = submit.epoch
        self.key = (submit.tenant, submit.request_id, submit.sampling.choice)
        self.next_index = len(submit.output_ids)
        self.sink = sink
        self.deadline: asyncio.TimerHandle | None = None
        self.arriving: asyncio.Future[Arrived | None] | None = None  # KV it waits for
        self.outgoing: Outgoing | None = None  # KV it hands on
        self.compiling: asyncio.Task[Matcher] | None = None  # its grammar
        self.is_accepted = submit.grammar is None  # whether it cannot be rejected any more
        self.in_engine = False

    def abort(self) -> None:
        """Stop and free the blocks; `Done` ("cancelled") still comes. Idempotent, never fails."""
        self._served.abort(self)


class Node:
    """Some models, each with its engine on a thread of its own.

    Create it, and call it, on the thread of `loop`.
    """

    def __init__(
        self,
        *,
        id: str,
        region: str,
        loop: asyncio.AbstractEventLoop,
        role: Role = "hybrid",
        incarnation: int = 0,
    ) -> None:
        self.id = id
        self.incarnation = incarnation  # grows each time a node of this id starts
        self.region = region
        self.role: Role = role
        self._loop = loop
        self._served: dict[str, _Served] = {}
        self._encoders: dict[str, ServedEncoder] = {}

    def serve(self, model: str, engine: Engine, grammars: Grammars | None = None) -> None:
        """Start the engine's worker; from now on `model` (a catalog id) takes streams.

        Without `grammars`, which the node then owns, it takes none that must follow one.
        """
        self._check_new(model)
        reporter = Reporter(self.id, self.incarnation, model, engine)
        self._served[model] = _Served(model, engine, reporter, grammars, self._loop)

    def serve_encoder(self, model: str, encoder: Encoder) -> None:
        """Start the encoder's worker; from now on `model` takes texts to embed."""
        self._check_new(model)
        self._encoders[model] = ServedEncoder(model, encoder, self._loop)

    @property
    def encoders(self) -> frozenset[str]:
        """Models that embed."""
        return frozenset(self._encoders)

    def _check_new(self, model: str) -> None:
        if model in self._served or model in self._encoders:
            raise ValueError(f"{model} is served already")

    @property
    def models(self) -> frozenset[str]:
        """Models that take streams now."""
        return frozenset(served.model for served in self._all() if served.state == "ready")

    def submit(self, submit: Submit, sink: Sink) -> NodeStream:
        """Start a stream; its events go to `sink`, never before this returns.

        Raises `ModelNotFound`, `InvalidInput`, `PromptTooLong`, `Overloaded` (with `retry_after`),
        `RequestTimeout` (no seconds left) or `Unavailable` (the engine is gone). A stream of the
        same request with a lower epoch is an attempt given up elsewhere: it is aborted.
        """
        served = self._served.get(submit.model)
        if served is None:
            known = ", ".join(sorted(self._served)) or "no model"
            raise ModelNotFound(f"this node serves {known}, not {submit.model}", param="model")
        return served.submit(submit, sink)

    def embed(self, embed: Embed, sink: EncoderSink) -> Encoding:
        """Start to embed; the one event goes to `sink`, never before this returns.

        Raises `ModelNotFound`, `InvalidInput`, `Overloaded` (with `retry_after`) or `Unavailable`.
        """
        encoder = self._encoders.get(embed.model)
        if encoder is None:
            known = ", ".join(sorted(self._encoders)) or "no model"
            raise ModelNotFound(f"this node embeds by {known}, not {embed.model}", param="model")
        return encoder.submit(embed, sink)

    def desk(self, model: str) -> KVDesk:
        """Hand-over of a served model; its `incoming` must listen before edges name it."""
        return self._served[model].desk

    def reports(self) -> list[Report]:
        """What is new of each engine since the last time of asking."""
        return [served.reporter.report() for served in self._served.values()]

    def snapshots(self) -> list[Report]:
        """Everything of each engine; `reports` go on from there."""
        return [served.reporter.snapshot() for served in self._served.values()]

    def beats(self) -> list[EngineBeat]:
        """The pulse of each engine: one that has work and makes no steps hangs."""
        return [served.beat() for served in self._all()]

    def status(self) -> list[ModelStatus]:
        return [
            ModelStatus(
                node=self.id,
                pid=os.getpid(),
                role=self.role,
                region=self.region,
                model=served.model,
                state=served.state,
                streams=served.num_streams,
            )
            for served in self._all()
        ]

    async def close(self) -> None:
        """Fail what runs with `Unavailable`, stop the engines' threads and free their memory."""
        await asyncio.gather(*(served.close() for served in self._all()))

    def _all(self) -> Iterator[_Served | ServedEncoder]:
        yield from self._served.values()
        yield from self._encoders.values()


class _Served:
    """A model, its worker, and the streams that run on it."""

    def __init__(
        self,
        model: str,
        engine: Engine,
        reporter: Reporter,
        grammars: Grammars | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.model = model
        self._grammars = grammars
        self.reporter = reporter
        self.state: State = "ready"
        self._loop = loop
        self._streams: dict[str, NodeStream] = {}  # by engine id
        self._attempts: dict[tuple[str, str, int], NodeStream] = {}  # newest of each request
        self._numbers = itertools.count()
        self.desk = KVDesk(engine)
        self._worker = Worker(engine, deliver=self.deliver, failed=self.failed)
        self._worker.start()

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    def submit(self, submit: Submit, sink: Sink) -> NodeStream:
        if self.state != "ready":
            raise self._gone()
        if submit.seconds_left is not None and submit.seconds_left <= 0:
            raise RequestTimeout("the deadline passed before the request reached its node")
        engine_id = f"{submit.request_id}#{next(self._numbers)}"  # unique whatever clients send
        stream = NodeStream(self, submit, engine_id, sink)
        request = engine_request(submit, engine_id)
        if submit.grammar is not None:
            stream.compiling = self._compile(submit, submit.grammar)
            begin = functools.partial(self._compiled, stream, request, submit)
            stream.compiling.add_done_callback(begin)
        if submit.hand_over_from is not None:
            stream.arriving = self.desk.expect(submit.hand_over_from)
        if stream.compiling is None:
            self._begin(stream, request, submit)
        return self._opened(stream, submit.seconds_left)

    def _compile(self, submit: Submit, grammar: GrammarSpec) -> asyncio.Task[Matcher]:
        if self._grammars is None:
            raise InvalidInput(f"{self.model} takes no grammar here")
        compiling = self._grammars.matcher(
            Grammar(grammar.kind, grammar.source),
            cache_key=submit.cache_key,
            output_ids=submit.output_ids,
        )
        return self._loop.create_task(compiling, name="grammar")

    def _compiled(
        self, stream: NodeStream, request: Request, submit: Submit, future: asyncio.Future[Matcher]
    ) -> None:
        """Accept a stream whose grammar is ready, or reject it."""
        if stream.engine_id not in self._streams or future.cancelled():
            return
        try:
            request = replace(request, matcher=future.result())
            stream.is_accepted = True
            self._tell(stream, Accepted(stream=stream.number))
            self._begin(stream, request, submit)
        except SkerryError as error:
            self._end(stream, failed_event(stream.number, error))

    def _begin(self, stream: NodeStream, request: Request, submit: Submit) -> None:
        """Give a request to the engine, now or when its KV has come. Raises as `_start`."""
        if stream.arriving is not None:
            start = functools.partial(self._start_arrived, stream, request)
            stream.arriving.add_done_callback(start)
        elif submit.hand_over_to is not None:
            self._start_exporting(stream, request, submit)
        else:
            self._start(stream, request)

    def _start_exporting(self, stream: NodeStream, request: Request, submit: Submit) -> None:
        assert submit.hand_over_to is not None
        stream.outgoing = self.desk.send(submit.hand_over_to, request, submit.epoch)
        try:
            self._start(stream, request)
        except SkerryError:
            stream.outgoing.end()
            raise

    def _start_arrived(
        self, stream: NodeStream, request: Request, future: asyncio.Future[Arrived | None]
    ) -> None:
        """Give a request to the engine with the KV that came for it, or without."""
        if stream.engine_id not in self._streams or future.cancelled():
            return
        arrived = future.result()
        if arrived is not None:
            request = self.desk.with_arrived(request, arrived)
            if arrived.made is not None:
                self._tell_made(stream, arrived.made)
        try:
            self._start(stream, request)
        except SkerryError as error:
            self._end(stream, failed_event(stream.number, error))

    def _tell_made(self, stream: NodeStream, made: Made) -> None:
        """Pass on the tokens that the prefill node made, so that this stream is whole by itself."""
        tokens = Tokens(
            stream=stream.number,
            index=stream.next_index,
            token_ids=made.token_ids,
            logprobs=made.logprobs,
        )
        self._tell(stream, tokens)
        stream.next_index += len(made.token_ids)

    def _start(self, stream: NodeStream, request: Request) -> None:
        """Give a request to the engine. Raises what `Node.submit` raises."""
        try:
            self._worker.submit(request)
        except RequestTooLong as error:
            raise PromptTooLong(str(error)) from None
        except RequestRejected as error:
            raise InvalidInput(str(error)) from None
        except EngineOverloaded as error:
            raise Overloaded(str(error), retry_after=error.retry_after) from None
        except WorkerStopped:  # the news of it is on its way to this thread
            raise self._gone() from None
        stream.in_engine = True

    def _opened(self, stream: NodeStream, seconds_left: float | None) -> NodeStream:
        older = self._attempts.get(stream.key)
        if older is not None and older.epoch < stream.epoch:
            older.abort()
        self._attempts[stream.key] = stream
        self._streams[stream.engine_id] = stream
        if seconds_left is not None:
            stream.deadline = self._loop.call_later(seconds_left, self._expire, stream)
        return stream

    def abort(self, stream: NodeStream) -> None:
        if stream.engine_id not in self._streams:
            return
        if stream.in_engine:
            self._worker.abort(stream.engine_id)
        else:
            self._end(stream, Done(stream=stream.number, finish_reason="cancelled", usage=NO_USAGE))

    def beat(self) -> EngineBeat:
        statistics = self._worker.statistics()
        return EngineBeat(
            model=self.model,
            steps=statistics.steps,
            running=statistics.running,
            waiting=statistics.waiting,
        )

    async def close(self) -> None:
        if self.state == "ready":
            self.state = "closed"
        self._fail_all()
        await self.desk.close()
        if self._grammars is not None:
            await self._grammars.close()
        await asyncio.to_thread(self._worker.close)

    # --- on the engine's thread ------------------------------------------------------------------

    def deliver(self, outputs: list[Output]) -> None:
        self._loop.call_soon_threadsafe(self._on_step, outputs, self.reporter.after_step())

    def failed(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._on_failure, error)

    # --- back on the loop ------------------------------------------------------------------------

    def _on_step(self, outputs: list[Output], news: StepNews) -> None:
        self.reporter.take(news)
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:  # else it ended here first: deadline or shutdown
                self._pass_on(stream, output)

    def _pass_on(self, stream: NodeStream, output: Output) -> None:
        if stream.outgoing is not None:
            stream.outgoing.push(output)
        if output.token_ids or output.prompt_logprobs:
            self._tell(stream, tokens_event(stream.number, stream.next_index, output))
            stream.next_index += len(output.token_ids)
        if output.failure is not None:
            stream.in_engine = False
            kind = InternalError if stream.compiling is None else InvalidInput
            self._end(stream, failed_event(stream.number, kind(output.failure)))
        elif output.finish_reason is not None:
            stream.in_engine = False
            done = done_event(stream.number, output)
            if stream.outgoing is None or not stream.outgoing.is_whole:
                self._end(stream, done)
            else:
                stream.outgoing.when_over(functools.partial(self._handed_over, stream, done))

    def _handed_over(self, stream: NodeStream, done: Done, arrived: bool) -> None:
        """A prefill's stream lasts until its KV is with the peer: until then it can fail."""
        if stream.engine_id in self._streams:
            error = Unavailable("the decode node could not be given the KV")
            self._end(stream, done if arrived else failed_event(stream.number, error))

    def _on_failure(self, error: BaseException) -> None:
        logger.error("the engine of %s stopped", self.model, exc_info=error)
        self.state = "failed"
        self._fail_all()

    def _fail_all(self) -> None:
        for stream in list(self._streams.values()):
            self._break_off(stream, self._gone())

    def _gone(self) -> SkerryError:
        why = "is shutting down" if self.state == "closed" else "stopped on an error of its own"
        return Unavailable(f"the engine of {self.model} {why}", retry_after=RESTART_SECONDS)

    def _expire(self, stream: NodeStream) -> None:
        message = f"the deadline passed after {stream.next_index} tokens"
        self._break_off(stream, RequestTimeout(message))

    def _break_off(self, stream: NodeStream, error: SkerryError) -> None:
        if stream.in_engine:
            self._worker.abort(stream.engine_id)
        self._end(stream, failed_event(stream.number, error))

    def _end(self, stream: NodeStream, event: Done | Failed) -> None:
        del self._streams[stream.engine_id]
        if self._attempts.get(stream.key) is stream:
            del self._attempts[stream.key]
        if stream.deadline is not None:
            stream.deadline.cancel()
        if stream.compiling is not None:
            stream.compiling.cancel()
        if stream.arriving is not None:
            stream.arriving.cancel()
        if stream.outgoing is not None:
            stream.outgoing.end()
        self._tell(stream, event)

    def _tell(self, stream: NodeStream, event: Accepted | Event) -> None:
        """One stream's broken sink must not cost the others of this step their tokens."""
        try:
            stream.sink(event)
        except Exception:
            logger.exception("the sink of stream %s failed", stream.engine_id)
            self.abort(stream)


def engine_request(submit: Submit, engine_id: str) -> Request:
    """What the engine is asked for a submitted stream."""
    sampling = submit.sampling
    return Request(
        id=engine_id,
        prompt_ids=tuple(submit.prompt_ids),
        output_ids=tuple(submit.output_ids),
        sampling=SamplingParams(
            **{name: getattr(sampling, name) for name in sampling.__struct_fields__}
        ),
        tenant=submit.tenant,
        cache_key=submit.cache_key,
        priority=PRIORITIES[submit.priority],
        prompt_logprobs=submit.prompt_logprobs,
        exports_kv=submit.hand_over_to is not None,
    )


def tokens_event(stream: int, index: int, output: Output) -> Tokens:
    return Tokens(
        stream=stream,
        index=index,
        token_ids=list(output.token_ids),
        logprobs=_logprobs(output.logprobs),
        prompt_logprobs=_logprobs(output.prompt_logprobs),
    )


def _logprobs(logprobs: tuple[TokenLogprobs, ...]) -> list[TokenLogprob] | None:
    return [(entry.logprob, list(entry.top)) for entry in logprobs] or None


def done_event(stream: int, output: Output) -> Done:
    assert output.finish_reason is not None
    assert output.usage is not None  # the engine's promise about a last output
    return Done(stream=stream, finish_reason=output.finish_reason, usage=_usage(output.usage))


def _usage(usage: Usage) -> PhaseUsage:
    return PhaseUsage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        queue_seconds=usage.queue_seconds,
        prefill_seconds=usage.prefill_seconds,
        decode_seconds=usage.decode_seconds,
    )


def failed_event(stream: int, error: SkerryError) -> Failed:
    return Failed(
        stream=stream,
        code=error.code,
        message=error.message[:MAX_MESSAGE],
        retry_after=error.retry_after,
    )
