"""What metrics and a trace learn of one choice of a request, whichever way it ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from skerry_edge.telemetry.attempt_spans import add_attempts
from skerry_edge.telemetry.metrics import EdgeMetrics
from skerry_edge.telemetry.tracing import Attributes, Trace
from skerry_regions.phases import Timeline
from skerry_regions.region.attempt_record import AttemptedStream, AttemptRecord
from skerry_regions.trace_context import TraceContext
from skerry_regions.wire.client import TokenStream
from skerry_regions.wire.pins import PromptUse
from skerry_regions.wire.protocol import PhaseUsage

ABORT = "abort"  # how a choice ended that neither finished nor failed


class ChoiceTelemetry:
    """A `StreamObserver` that counts, and notes one span from the call of the region to the end."""

    def __init__(
        self,
        metrics: EdgeMetrics | None,
        trace: Trace | None,
        clock: Callable[[], float],
        *,
        model: str,
        prompt: int,
        choice: int,
        started: float,
    ) -> None:
        """Without metrics nothing is counted, since nothing is computed: the answer was kept.
        `started` is when the request's header came, in seconds of `clock`."""
        self._metrics = metrics
        self._trace = trace
        self._clock = clock
        self._model = model
        self._started = started
        self._asked = 0.0 if trace is None else trace.now()
        self._prompt, self._choice = prompt, choice
        self._stream: TokenStream | None = None
        self._last_step: float | None = None
        self._num_tokens = 0
        self._outcome = ABORT
        # What its nodes are sent.
        self.context: TraceContext | None = None if trace is None else trace.context.child()

    def placed(self, stream: TokenStream) -> None:
        """Note the stream that a region gave."""
        self._stream = stream

    def prompt(self, use: PromptUse) -> None:
        """Do nothing: the end says it too."""

    def tokens(self, number: int) -> None:
        """Observe a step."""
        self._num_tokens += number
        if self._metrics is None:
            return
        now = self._clock()
        if self._last_step is None:
            self._metrics.time_to_first_token.observe(now - self._started, self._model)
        else:
            self._metrics.inter_token_latency.observe(now - self._last_step, self._model)
        self._last_step = now

    def done(self, reason: str, usage: PhaseUsage | None) -> None:
        """Observe a choice that its engine finished."""
        self._outcome = reason
        if self._metrics is None:
            return
        if usage is not None:
            self._metrics.cached_tokens.add(usage.cached_tokens, self._model)
            self._metrics.prompt_lengths.observe(usage.prompt_tokens, self._model)
        self._metrics.generations.add(1, self._model, reason)
        self._metrics.latency.observe(self._clock() - self._started, self._model)

    def failed(self, code: str, *, is_ours: bool) -> None:
        """Observe a choice that ended in an error."""
        self._outcome = code
        if self._metrics is not None:
            self._metrics.generations_failed.add(1, self._model, code)

    def rejected(self, code: str) -> None:
        """Note the span of a choice that no region took."""
        self._outcome = code
        self.closed()

    def closed(self) -> None:
        """Observe the end, and note the span with its attempts."""
        attempts = self._attempts()
        if self._metrics is not None and self._stream is not None:
            self._metrics.output_tokens.add(self._num_tokens, self._model)
            self._metrics.output_lengths.observe(self._num_tokens, self._model)
            if self._outcome == ABORT:
                self._metrics.generations.add(1, self._model, ABORT)
            _count(self._metrics, self._model, attempts)
        if self._trace is not None and self.context is not None:
            attributes: Attributes = {
                "model": self._model,
                "prompt": self._prompt,
                "choice": self._choice,
                "outcome": self._outcome,
                "tokens": self._num_tokens,
            }
            if self._metrics is None:
                attributes["replayed"] = True
            id = self.context.span_id
            self._trace.add("generate", self._asked, self._trace.now(), attributes, id=id)
            if attempts:
                now = self._trace.now()
                self._trace.add_later(lambda trace: add_attempts(trace, id, attempts, now))

    def _attempts(self) -> Sequence[AttemptRecord]:
        """Return where it ran; nothing when that is not known."""
        return self._stream.attempts if isinstance(self._stream, AttemptedStream) else ()


def _count(metrics: EdgeMetrics, model: str, attempts: Sequence[AttemptRecord]) -> None:
    """Count a stream's attempts by their outcomes, all together once it is over."""
    phases = defaultdict[str, float](float)
    for record in attempts:
        metrics.attempts.add(1, model, record.outcome or "aborted")
        if record.num_before:
            metrics.resumes.add(1, model, "exact" if record.is_exact else "best-effort")
        metrics.route_time.observe(record.began - record.asked, model)
        if (network := record.network_seconds) is not None:
            metrics.network_time.observe(network, model)
        for timeline in record.timelines.values():
            for phase in timeline.phases:
                phases[phase.name] += phase.seconds
            if len(record.nodes) > 1:
                _count_handover(metrics, model, timeline)
    for name, histogram in (
        ("queue", metrics.queue_time),
        ("prefill", metrics.prefill_time),
        ("decode", metrics.decode_time),
    ):
        if name in phases:
            histogram.observe(phases[name], model)


def _count_handover(metrics: EdgeMetrics, model: str, timeline: Timeline) -> None:
    sent, prefill = timeline.phase("send"), timeline.phase("prefill")
    if sent is not None and prefill is not None and not sent.lost:
        metrics.handover_time.observe(max(0.0, sent.end - prefill.end), model)
