"""One running attempt of a node: where its events go, and when its phases began."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from skerry_core.request import EngineUsage, Output
from skerry_regions.kv.engine_transfers import PromptTransfer
from skerry_regions.node.metrics import NodeMetrics
from skerry_regions.phases import Phase, Timeline
from skerry_regions.wire.pins import PromptUse
from skerry_regions.wire.protocol import (
    Accepted,
    Done,
    Event,
    Failed,
    FinishReason,
    PhaseUsage,
    Submit,
    Tokens,
)

logger = logging.getLogger("skerry.streams")

Sink = Callable[[Accepted | Event], None]
"""Takes the events of one stream, on the event loop. It must not block and not raise.

`Accepted` comes only where `NodeStream.is_accepted` was not true from the start.
"""


def ignore(event: Accepted | Event) -> None:
    """Take an event of a stream that has ended."""


class StreamTimes:
    """When the phases of one stream began, from its arrival on; `timeline` makes the phases of it.
    A few calls per stream, none per token.

    `clock` is monotonic, in seconds.
    """

    __slots__ = (
        "_arrived",
        "_clock",
        "_compiled",
        "_ended",
        "_first_tokens",
        "_received",
        "_submitted",
        "_usage",
    )

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._arrived = clock()
        self._compiled = self._submitted = self._first_tokens = self._ended = 0.0
        self._received: Phase | None = None
        self._usage: EngineUsage | None = None

    def compiled(self) -> None:
        """Note that the stream's grammar is ready."""
        self._compiled = self._now()

    def received(self, blocks: int, num_bytes: int, *, lost: bool) -> None:
        """Note that the KV that the stream waited for is here, or will not come."""
        self._received = Phase(
            name="receive",
            start=self._compiled,
            seconds=self._now() - self._compiled,
            blocks=blocks,
            bytes=num_bytes,
            lost=lost,
        )

    def submitted(self) -> None:
        """Note that the engine has the request."""
        self._submitted = self._now()

    def first_tokens(self) -> None:
        """Note that the engine made the first token."""
        self._first_tokens = self._now()

    @property
    def has_first_tokens(self) -> bool:
        return self._first_tokens > 0.0

    def ended(self, usage: EngineUsage) -> None:
        """Note that the engine made the last token."""
        self._ended = self._now()
        self._usage = usage

    def timeline(self, sent: tuple[int, int] | None = None) -> Timeline:
        """Return the phases, with the hand-over that ends now: (blocks, bytes) that were `sent`."""
        phases: list[Phase] = []
        if self._compiled:
            phases.append(Phase(name="grammar", start=0.0, seconds=self._compiled))
        if self._received is not None:
            phases.append(self._received)
        if self._usage is not None:
            phases += self._in_engine(self._usage)
        if sent is not None:
            blocks, num_bytes = sent
            start = self._submitted
            phases.append(
                Phase(
                    name="send",
                    start=start,
                    seconds=self._now() - start,
                    blocks=blocks,
                    bytes=num_bytes,
                )
            )
        phases.sort(key=lambda phase: phase.start)
        return Timeline(seconds=self._now(), phases=tuple(phases))

    def _in_engine(self, usage: EngineUsage) -> list[Phase]:
        """Queue, prefill and decode. The engine knows only how long it had the request, by a clock
        of its own; its end is the point that both clocks know."""
        first_place = self._ended - (usage.seconds - usage.queue_seconds)
        first_tokens = self._first_tokens or self._ended
        scheduled = min(max(first_place, self._submitted), first_tokens)
        phases = [
            Phase(name="queue", start=self._submitted, seconds=scheduled - self._submitted),
        ]
        decoding_since = scheduled
        if usage.prefill_steps:
            decoding_since = first_tokens
            phases.append(
                Phase(
                    name="prefill",
                    start=scheduled,
                    seconds=first_tokens - scheduled,
                    tokens=usage.prefill_tokens,
                    cached_tokens=usage.cached_tokens,
                    steps=usage.prefill_steps,
                    preemptions=usage.preemptions,
                )
            )
        if usage.decode_steps:
            phases.append(
                Phase(
                    name="decode",
                    start=decoding_since,
                    seconds=self._ended - decoding_since,
                    tokens=usage.decode_tokens,
                    steps=usage.decode_steps,
                )
            )
        return phases

    def _now(self) -> float:
        return self._clock() - self._arrived


class NodeStream:
    """One running attempt. Ends with exactly one `Done` or `Failed` in its sink."""

    __slots__ = (
        "_abort",
        "deadline",
        "engine_id",
        "epoch",
        "has_grammar",
        "in_engine",
        "is_accepted",
        "key",
        "next_index",
        "number",
        "outgoing",
        "preparing",
        "sink",
        "times",
        "trace",
    )

    def __init__(
        self, submit: Submit, engine_id: str, sink: Sink, abort: Callable[[NodeStream], None]
    ) -> None:
        self._abort = abort
        self.number = submit.stream
        self.engine_id = engine_id
        self.epoch = submit.epoch
        self.key = (submit.tenant, submit.request_id, submit.sampling.choice)
        self.next_index = len(submit.output_ids)
        self.sink = sink
        self.deadline: asyncio.TimerHandle | None = None
        self.preparing: asyncio.Task[None] | None = None  # its grammar, or KV it waits for
        self.outgoing: PromptTransfer | None = None  # KV it hands on
        self.has_grammar = submit.grammar is not None
        self.is_accepted = not self.has_grammar  # whether it cannot be rejected any more
        self.in_engine = False
        self.trace = submit.trace
        self.times = StreamTimes()

    @property
    def log_fields(self) -> dict[str, str]:
        """Return fields of a log line about the stream: the ids that find it at its edge."""
        ids = {"request_id": self.key[1]}
        return ids if self.trace is None else {**ids, "trace_id": self.trace.trace_id}

    def tokens(self, output: Output) -> Tokens:
        """Return the event of what a step made."""
        prompt = None
        if output.begun is not None:
            prompt = msgspec.convert(output.begun, PromptUse, from_attributes=True)
        return Tokens(
            stream=self.number,
            index=self.next_index,
            token_ids=output.token_ids,
            logprobs=output.logprobs or None,
            prompt_logprobs=output.prompt_logprobs or None,
            withheld=output.withheld,
            led=output.led,
            prompt=prompt,
        )

    def done(self, finish_reason: FinishReason, usage: EngineUsage, timeline: Timeline) -> Done:
        """Return the event of an end that the engine made."""
        return Done(
            stream=self.number,
            finish_reason=finish_reason,
            usage=msgspec.convert(usage, PhaseUsage, from_attributes=True),
            timeline=timeline,
        )

    def count_end(
        self, metrics: NodeMetrics, model: str, reason: str, usage: EngineUsage, timeline: Timeline
    ) -> None:
        """Count an end that the engine made."""
        metrics.streams.add(1, model, reason)
        metrics.prompt_tokens.add(usage.prompt_tokens, model)
        metrics.cached_tokens.add(usage.cached_tokens, model)
        metrics.prompt_lengths.observe(usage.prompt_tokens, model)
        metrics.output_lengths.observe(usage.output_tokens, model)
        metrics.latency.observe(timeline.seconds, model)
        for phase in timeline.phases:
            match phase.name:
                case "queue":
                    metrics.queue_time.observe(phase.seconds, model)
                case "prefill":
                    metrics.prefill_time.observe(phase.seconds, model)
                    metrics.time_to_first_token.observe(phase.start + phase.seconds, model)
                case "decode":
                    metrics.decode_time.observe(phase.seconds, model)
                    metrics.time_per_token.observe(phase.seconds / phase.tokens, model)
                case "receive":
                    metrics.receive_time.observe(phase.seconds, model)
                    metrics.handed_over(model, phase, "receive")
                case "send":
                    metrics.handed_over(model, phase, "send")
                    if (prefill := timeline.phase("prefill")) is not None:
                        metrics.handover_time.observe(max(0.0, phase.end - prefill.end), model)
                case "grammar":
                    pass

    def log_end(self, event: Done | Failed) -> None:
        """Log one line for each stream."""
        outcome = event.code if isinstance(event, Failed) else event.finish_reason
        fields = {**self.log_fields, "outcome": outcome, "tokens": self.next_index}
        logger.info("stream ended: %s", outcome, extra={"fields": fields})

    def abort(self) -> None:
        """Stop and free the blocks; `Done` ("cancelled") still comes. Idempotent, never fails."""
        self._abort(self)
