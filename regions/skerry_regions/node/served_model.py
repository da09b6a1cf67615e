"""A model on its worker, and the streams that run on it.

All of it runs on the node's event loop; only `ServedModel.deliver` and `.failed` run on the
engine's thread, and they do nothing but cross over, once per step.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Sequence as ListOf

from skerry.errors import InternalError, InvalidInput, RequestTimeout, SkerryError, Unavailable
from skerry_core.engine.engine import Engine
from skerry_core.engine.figures import Statistics
from skerry_core.engine.sequence import Sequence
from skerry_core.engine.worker import Worker
from skerry_core.grammar.matcher import Matcher
from skerry_core.reasoning_budget import ReasoningBudget
from skerry_core.request import KVBlock, Output
from skerry_regions.kv.connector import KVConnector
from skerry_regions.node.grammar.grammars import Grammars
from skerry_regions.node.metrics import NodeMetrics
from skerry_regions.node.preparation import Preparation
from skerry_regions.node.rejections import REFUSED, State, rejection, unavailable
from skerry_regions.node.reporting import Reporter, StepNews
from skerry_regions.node.stream import NodeStream, Sink, ignore
from skerry_regions.wire.client import NO_USAGE, failed_event
from skerry_regions.wire.link_auth import NO_CREDENTIALS, LinkCredentials
from skerry_regions.wire.protocol import (
    Accepted,
    Done,
    EngineBeat,
    Event,
    Failed,
    Submit,
)

logger = logging.getLogger(__name__)


class ServedModel:
    """A model with its engine on a thread. Belongs to one event loop."""

    def __init__(
        self,
        model: str,
        engine: Engine,
        reporter: Reporter | None,
        grammars: Grammars | None,
        loop: asyncio.AbstractEventLoop,
        metrics: NodeMetrics,
        credentials: LinkCredentials = NO_CREDENTIALS,
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
        self.connector = KVConnector(engine, self._worker.between_steps, credentials)
        self._worker.start()

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    def submit(self, submit: Submit, sink: Sink) -> NodeStream:
        """Start a stream; see `Node.submit`."""
        if self.state != "ready":
            raise self._gone()
        if submit.seconds_left is not None and submit.seconds_left <= 0:
            raise RequestTimeout("the deadline passed before the request reached its node")
        engine_id = f"{submit.request_id}#{next(self._numbers)}"  # unique whatever clients send
        stream = NodeStream(submit, engine_id, sink, self.abort)
        if submit.grammar is None and submit.reasoning is None and submit.hand_over_from is None:
            self._start(stream, submit)
        else:
            fetched = None if self.reporter is None else self.reporter.fetched
            unknown = functools.partial(self._metrics.closing_unknown.add, 1, self.model)
            preparation = Preparation(submit, self._grammars, self.connector, fetched, unknown)
            preparing = self._prepare(stream, preparation)
            stream.preparing = self._loop.create_task(preparing, name=f"prepare {engine_id}")
            stream.preparing.add_done_callback(lambda _: preparation.close())
        return self._opened(stream, submit.seconds_left)

    async def _prepare(self, stream: NodeStream, preparation: Preparation) -> None:
        """Start a stream when all that it waits for is there, or reject it."""
        try:
            await preparation.run(stream, self._emit, self._start)
        except SkerryError as error:
            self._end(stream, failed_event(stream.number, error))
        except Exception:
            logger.exception("stream %s was not started", stream.engine_id)
            bug = InternalError("the stream could not be started")
            self._end(stream, failed_event(stream.number, bug))

    def _start(
        self,
        stream: NodeStream,
        request: Submit,
        matcher: Matcher | None = None,
        kv: ListOf[KVBlock] = (),
        *,
        budget: ReasoningBudget | None = None,
        private: bool = False,
    ) -> None:
        """Give a request to the engine, and its KV to the node that it is handed over to.

        Raises what `Node.submit` raises.
        """
        outgoing = None
        if (to := request.hand_over_to) is not None:
            outgoing = self.connector.send(to, request, stream.engine_id, private=private)
        stream.outgoing = outgoing
        stream.times.submitted()
        try:
            sequence = Sequence(
                stream.engine_id,
                request,
                matcher=matcher,
                budget=budget,
                kv=kv,
                exports_kv=outgoing is not None,
                export_pages=None if outgoing is None else outgoing.pages,
                private_blocks=private,
                whole_max_tokens=None if to is None else to.max_tokens,
            )
            self._worker.submit(sequence)
        except REFUSED as error:
            if outgoing is not None:
                outgoing.end()
            raise rejection(error, self._gone) from None
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
        """Stop a stream; see `NodeStream.abort`."""
        if stream.engine_id not in self._streams:
            return
        if stream.in_engine:
            self._worker.abort(stream.engine_id)
        else:
            self._end(stream, Done(stream=stream.number, finish_reason="cancelled", usage=NO_USAGE))

    def statistics(self) -> Statistics:
        """Return the engine's figures of now."""
        return self._worker.statistics()

    def beat(self) -> EngineBeat:
        """Return the engine's pulse."""
        statistics = self.statistics()
        return EngineBeat(
            model=self.model,
            steps=statistics.steps,
            running=statistics.running,
            waiting=statistics.waiting,
        )

    async def close(self) -> None:
        """Fail what runs, end the transfers, and stop the engine's thread."""
        if self.state == "ready":
            self.state = "closed"
        self._fail_all()
        await self.connector.close()
        if self._grammars is not None:
            await self._grammars.close()
        await asyncio.to_thread(self._worker.close)

    # --- on the engine's thread ------------------------------------------------------------------

    def deliver(self, outputs: list[Output]) -> None:
        """Take what a step made."""
        news = None if self.reporter is None else self.reporter.after_step()
        self._loop.call_soon_threadsafe(self._on_step, outputs, news)

    def failed(self, error: BaseException) -> None:
        """Take the error that stopped the engine."""
        self._loop.call_soon_threadsafe(self._on_failure, error)

    # --- back on the loop ------------------------------------------------------------------------

    def _on_step(self, outputs: list[Output], news: StepNews | None) -> None:
        if self.reporter is not None and news is not None:
            self.reporter.take(news)
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:  # else it ended here first: deadline or shutdown
                self._pass_on(stream, output)

    def _pass_on(self, stream: NodeStream, output: Output) -> None:
        if stream.outgoing is not None:
            stream.outgoing.push(output)
        if output.token_ids or output.prompt_logprobs:
            self._emit(stream, stream.tokens(output))
            stream.next_index += len(output.token_ids)
            if output.token_ids and not stream.times.has_first_tokens:
                stream.times.first_tokens()
        if output.failure is not None:
            stream.in_engine = False
            kind = InvalidInput if stream.has_grammar else InternalError
            self._end(stream, failed_event(stream.number, kind(output.failure)))
        elif output.finish_reason is not None:
            assert output.usage is not None  # the engine's promise about a last output
            stream.in_engine = False
            stream.times.ended(output.usage)
            if stream.outgoing is None or not stream.outgoing.is_whole:
                self._finish(stream, output)
            else:
                over = functools.partial(self._sent, stream, output)
                stream.outgoing.when_over(over)

    def _sent(self, stream: NodeStream, output: Output, last_word: object) -> None:
        """End a prefill's stream when its KV is with the peer: until then it can fail."""
        if stream.engine_id not in self._streams or stream.outgoing is None:
            return
        if last_word is not None:
            self._finish(stream, output, stream.outgoing.sent)
        else:
            self._metrics.handovers.add(1, self.model, "send", "lost")
            error = Unavailable("the decode node could not be given the KV")
            self._end(stream, failed_event(stream.number, error))

    def _finish(
        self, stream: NodeStream, output: Output, sent: tuple[int, int] | None = None
    ) -> None:
        assert output.finish_reason is not None
        assert output.usage is not None
        reason, usage, timeline = output.finish_reason, output.usage, stream.times.timeline(sent)
        stream.count_end(self._metrics, self.model, reason, usage, timeline)
        self._end(stream, stream.done(reason, usage, timeline))

    def _on_failure(self, error: BaseException) -> None:
        logger.error("the engine of %s stopped", self.model, exc_info=error)
        self.state = "failed"
        self._fail_all()

    def _fail_all(self) -> None:
        self.connector.end_shares()
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
        if stream.preparing is not None:
            stream.preparing.cancel()
            stream.preparing = None  # its error refers to the stream by its traceback
        if stream.outgoing is not None:
            stream.outgoing.end()
        if isinstance(event, Failed):
            self._metrics.failures.add(1, self.model, event.code)
        stream.log_end(event)
        self._emit(stream, event)
        stream.sink = ignore  # whoever read it may hold the stream

    def _emit(self, stream: NodeStream, event: Accepted | Event) -> bool:
        """Pass an event on: one stream's broken sink must not cost the others their tokens.

        Returns whether the sink took it.
        """
        try:
            stream.sink(event)
            return True
        except Exception:
            extra = {"fields": stream.log_fields}
            logger.exception("the sink of stream %s failed", stream.engine_id, extra=extra)
            self.abort(stream)
            return False
