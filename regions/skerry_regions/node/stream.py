"""One running attempt of a node, and where its events go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from skerry_core.request import EngineUsage, Output
from skerry_regions.kv.engine_transfers import PromptTransfer
from skerry_regions.node.stream_times import StreamTimes
from skerry_regions.phases import Timeline
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
        """Fields of a log line about the stream: the ids that find it at its edge."""
        ids = {"request_id": self.key[1]}
        return ids if self.trace is None else {**ids, "trace_id": self.trace.trace_id}

    def tokens(self, output: Output) -> Tokens:
        """Return the event of what a step made."""
        return Tokens(
            stream=self.number,
            index=self.next_index,
            token_ids=output.token_ids,
            logprobs=output.logprobs or None,
            prompt_logprobs=output.prompt_logprobs or None,
        )

    def done(self, finish_reason: FinishReason, usage: EngineUsage, timeline: Timeline) -> Done:
        """Return the event of an end that the engine made."""
        return Done(
            stream=self.number,
            finish_reason=finish_reason,
            usage=msgspec.convert(usage, PhaseUsage, from_attributes=True),
            timeline=timeline,
        )

    def log_end(self, event: Done | Failed) -> None:
        """Log one line for each stream."""
        outcome = event.code if isinstance(event, Failed) else event.finish_reason
        fields = {**self.log_fields, "outcome": outcome, "tokens": self.next_index}
        logger.info("stream ended: %s", outcome, extra={"fields": fields})

    def abort(self) -> None:
        """Stop and free the blocks; `Done` ("cancelled") still comes. Idempotent, never fails."""
        self._abort(self)
