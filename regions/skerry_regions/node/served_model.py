"""A model on its worker, and the streams that run on it.

All of it runs on the node's event loop; only `ServedModel.deliver` and `.failed` run on the
engine's thread, and they do nothing but cross over, once per step.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from dataclasses import replace

from skerry.errors import InternalError, InvalidInput, RequestTimeout, SkerryError, Unavailable
from skerry_core.engine.engine import Engine
from skerry_core.engine.figures import Statistics
from skerry_core.engine.worker import Worker
from skerry_core.grammar.matcher import Grammar, Matcher
from skerry_core.request import Output, Request, Usage
from skerry_regions.kv.desk import KVDesk
from skerry_regions.kv.frames import Made
from skerry_regions.kv.transfer import Arrived
from skerry_regions.node.engine_messages import done_event, engine_request, tokens_event
from skerry_regions.node.grammar.grammars import Grammars
from skerry_regions.node.metrics import NodeMetrics
from skerry_regions.node.rejections import State, translated, unavailable
from skerry_regions.node.reporting import Reporter, StepNews
from skerry_regions.node.stream import NodeStream, Sink
from skerry_regions.phases import Timeline
from skerry_regions.wire.client import failed_event
from skerry_regions.wire.protocol import (
    NO_USAGE,
    Accepted,
    Done,
    EngineBeat,
    Event,
    Failed,
    Fetched,
    GrammarSpec,
    Submit,
    Tokens,
)

logger = logging.getLogger(__name__)


class ServedModel:
    """A model with its engine on a thread. Belongs to one event loop."""

    def __init__(
        self,
        model: str,
        engine: Engine,
        reporter: Reporter,
        grammars: Grammars | None,
        loop: asyncio.AbstractEventLoop,
        metrics: NodeMetrics,
    ) -> None:
        self.model = model
        self._metrics = metrics
        self._grammars = grammars
        self.reporter = reporter
        self.state: State = "ready"
        self._loop = loop
        self._streams: dict[str, NodeStream] = {}  # by engine id
        self._attempts: dict[tuple[str, str, int], NodeStream] = {}  # newest of each request
        self._numbers = itertools.count()
        self._worker = Worker(engine, deliver=self.deliver, failed=self.failed)
        self.desk = KVDesk(engine, self._worker.between_steps)
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
            try:
                stream.arriving = self.desk.expect(
                    submit.hand_over_from, request, mixed_builds=submit.mixed_builds
                )
            except SkerryError:
                if stream.compiling is not None:
                    stream.compiling.cancel()
                raise
            if source := submit.hand_over_from.source:
                measure = functools.partial(self._measure_fetch, source, self._loop.time())
                stream.arriving.add_done_callback(measure)
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
            stream.times.compiled()
            self._tell(stream, Accepted(stream=stream.number))
            if stream.engine_id in self._streams:  # else its sink has failed
                self._begin(stream, request, submit)
        except SkerryError as error:
            self._end(stream, failed_event(stream.number, error))

    def _begin(self, stream: NodeStream, request: Request, submit: Submit) -> None:
        """Give a request to the engine, now or when its KV has come. Raises as `_start`."""
        if stream.arriving is not None:
            start = functools.partial(self._begin_arrived, stream, request, submit)
            stream.arriving.add_done_callback(start)
        else:
            self._start(stream, request, submit)

    def _begin_arrived(
        self,
        stream: NodeStream,
        request: Request,
        submit: Submit,
        future: asyncio.Future[Arrived | None],
    ) -> None:
        """Give a request to the engine with the KV that came for it, or without."""
        if stream.engine_id not in self._streams or future.cancelled():
            return
        arrived = future.result()
        stream.arriving = None  # its blocks are the engine's from here on
        if arrived is None:
            stream.times.received(0, 0, lost=True)
        else:
            stream.times.received(arrived.num_blocks, arrived.num_bytes, lost=False)
            request = self.desk.with_arrived(request, arrived)
            if arrived.made is not None:
                self._tell_made(stream, arrived.made)
                if stream.engine_id not in self._streams:  # its sink has failed
                    return
        try:
            self._start(stream, request, submit)
        except SkerryError as error:
            self._end(stream, failed_event(stream.number, error))

    def _measure_fetch(
        self, source: str, asked_at: float, future: asyncio.Future[Arrived | None]
    ) -> None:
        """Let routers know how fast KV came from a node that was asked for it."""
        if not future.cancelled() and (arrived := future.result()) is not None:
            seconds = self._loop.time() - asked_at
            sample = Fetched(source=source, num_bytes=arrived.num_bytes, seconds=seconds)
            self.reporter.fetched(sample)

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

    def _start(self, stream: NodeStream, request: Request, submit: Submit) -> None:
        """Give a request to the engine, and what it makes to whom it is handed over.

        Raises what `Node.submit` raises.
        """
        if submit.hand_over_to is not None:
            stream.outgoing = self.desk.send(
                submit.hand_over_to, request, submit.epoch, submit.trace
            )
            request = replace(request, export_pages=stream.outgoing.pages)
        stream.times.submitted()
        try:
            with translated(self._gone):
                self._worker.submit(request)
        except SkerryError:
            if stream.outgoing is not None:
                stream.outgoing.end()
            raise
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

    def statistics(self) -> Statistics:
        """The engine's figures of now."""
        return self._worker.statistics()

    def beat(self) -> EngineBeat:
        statistics = self.statistics()
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
            if output.token_ids and not stream.times.has_first_tokens:
                stream.times.first_tokens()
        if output.failure is not None:
            stream.in_engine = False
            kind = InternalError if stream.compiling is None else InvalidInput
            self._end(stream, failed_event(stream.number, kind(output.failure)))
        elif output.finish_reason is not None:
            assert output.usage is not None  # the engine's promise about a last output
            stream.in_engine = False
            stream.times.ended(output.usage)
            if stream.outgoing is None or not stream.outgoing.is_whole:
                self._finish(stream, output, output.usage, stream.times.timeline())
            else:
                over = functools.partial(self._handed_over, stream, output, output.usage)
                stream.outgoing.when_over(over)

    def _handed_over(self, stream: NodeStream, output: Output, usage: Usage, arrived: bool) -> None:
        """A prefill's stream lasts until its KV is with the peer: until then it can fail."""
        if stream.engine_id not in self._streams or stream.outgoing is None:
            return
        if arrived:
            self._finish(stream, output, usage, stream.times.timeline(stream.outgoing.sent))
        else:
            self._metrics.lost(self.model)
            error = Unavailable("the decode node could not be given the KV")
            self._end(stream, failed_event(stream.number, error))

    def _finish(self, stream: NodeStream, output: Output, usage: Usage, timeline: Timeline) -> None:
        done = done_event(stream.number, output, timeline)
        self._metrics.ended(self.model, done.finish_reason, usage, timeline)
        self._end(stream, done)

    def _on_failure(self, error: BaseException) -> None:
        logger.error("the engine of %s stopped", self.model, exc_info=error)
        self.state = "failed"
        self._fail_all()

    def _fail_all(self) -> None:
        self.desk.end_shares()
        for stream in list(self._streams.values()):
            self._break_off(stream, self._gone())

    def _gone(self) -> SkerryError:
        return unavailable(f"the engine of {self.model}", self.state)

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
        if isinstance(event, Failed):
            self._metrics.failed(self.model, event.code)
        stream.log_end(event)
        self._tell(stream, event)

    def _tell(self, stream: NodeStream, event: Accepted | Event) -> None:
        """One stream's broken sink must not cost the others of this step their tokens."""
        try:
            stream.sink(event)
        except Exception:
            logger.exception(
                "the sink of stream %s failed",
                stream.engine_id,
                extra={"fields": stream.log_fields},
            )
            self.abort(stream)
