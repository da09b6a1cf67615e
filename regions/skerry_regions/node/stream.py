"""One running attempt of a node, and where its events go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from skerry_core.grammar.matcher import Matcher
from skerry_regions.kv.desk import Outgoing
from skerry_regions.kv.transfer import Arrived
from skerry_regions.node.stream_times import StreamTimes
from skerry_regions.wire.protocol import Accepted, Done, Event, Failed, Submit

if TYPE_CHECKING:
    from skerry_regions.node.served_model import ServedModel

logger = logging.getLogger("skerry.streams")

Sink = Callable[[Accepted | Event], None]
"""Takes the events of one stream, on the event loop. It must not block and not raise.

`Accepted` comes only where `NodeStream.is_accepted` was not true from the start.
"""


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
        "times",
        "trace",
    )

    def __init__(self, served: ServedModel, submit: Submit, engine_id: str, sink: Sink) -> None:
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
        self.trace = submit.trace
        self.times = StreamTimes()

    @property
    def log_fields(self) -> dict[str, str]:
        """What a log line says of whose stream it is."""
        ids = {"request_id": self.key[1]}
        return ids if self.trace is None else {**ids, "trace_id": self.trace.trace_id}

    def log_end(self, event: Done | Failed) -> None:
        """One line for each stream, with the ids that find it at its edge."""
        outcome = event.code if isinstance(event, Failed) else event.finish_reason
        fields = {**self.log_fields, "outcome": outcome, "tokens": self.next_index}
        logger.info("stream ended: %s", outcome, extra={"fields": fields})

    def abort(self) -> None:
        """Stop and free the blocks; `Done` ("cancelled") still comes. Idempotent, never fails."""
        self._served.abort(self)
