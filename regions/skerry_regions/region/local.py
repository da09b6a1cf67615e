"""A region in the edge's own process: the same events as over a connection, without the bytes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from functools import partial

from skerry_regions.node.encoders import Encoding
from skerry_regions.node.node import Node
from skerry_regions.region.attempt_record import AttemptedStream, AttemptRecord
from skerry_regions.wire.client import embedded, error_of
from skerry_regions.wire.protocol import (
    Accepted,
    Done,
    Embed,
    Event,
    Failed,
    Submit,
    Tokens,
)


class LocalRegion:
    """`RegionClient` of one node in this process. Closing it closes the node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def generate(self, submit: Submit) -> LocalStream:
        """See `RegionClient.generate`: rejections are raised here, before any token."""
        stream = LocalStream(self._node, submit)
        await stream.accepted()
        return stream

    async def embed(self, embed: Embed) -> bytes:
        """See `RegionClient.embed`."""
        return await embedded(partial(self._node.embed, embed), Encoding.abort)

    def models(self) -> frozenset[str]:
        return self._node.models

    async def close(self) -> None:
        await self._node.close()


class LocalStream(AttemptedStream):
    """Events of one attempt, which starts with it, from the node's sink to one reader.

    A slow reader does not pause the engine, and the buffer needs no bound of its own: it holds
    token ids, at most the `max_tokens` of its request (about 300 bytes each, so 2 MiB at 8,192),
    and an engine runs a bounded number of requests. The edge's write deadline ends the others.
    """

    def __init__(self, node: Node, submit: Submit) -> None:
        """Raises what `Node.submit` raises."""
        now = time.monotonic()
        self._record = AttemptRecord(nodes=(node.id,), asked=now, began=now)
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._aborted = False
        self._ended = False  # the reader has had the last event
        self._settled = asyncio.Event()  # accepted, or rejected
        self._attempt = node.submit(submit, self._push)

    @property
    def attempts(self) -> Sequence[AttemptRecord]:
        """See `AttemptedStream`."""
        return (self._record,)

    async def accepted(self) -> None:
        """Wait until the node has taken the stream. Raises what it was rejected with."""
        if self._attempt.is_accepted:
            return
        try:
            await self._settled.wait()
        except asyncio.CancelledError:
            self.abort()
            raise
        if self._events and isinstance(failed := self._events[0], Failed):
            raise error_of(failed)

    def _push(self, event: Accepted | Event) -> None:
        self._settled.set()
        if isinstance(event, Accepted):
            return
        if not isinstance(event, Tokens):
            self._note_end(event)
        elif self._aborted:
            return
        elif self._record.first_tokens is None:
            self._record.first_tokens = time.monotonic()
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _note_end(self, event: Done | Failed) -> None:
        record = self._record
        if isinstance(event, Failed):
            record.fail(time.monotonic(), error_of(event))
        else:
            record.num_tokens = event.usage.output_tokens
            record.add_timeline(record.nodes[-1], event.timeline)
            record.end(time.monotonic(), event.finish_reason)

    def abort(self) -> None:
        """Stop the node and forget tokens not yet read; `Done` still comes for the usage."""
        if self._aborted:
            return
        self._aborted = True
        self._events = deque(event for event in self._events if not isinstance(event, Tokens))
        self._attempt.abort()

    def __aiter__(self) -> LocalStream:
        return self

    async def __anext__(self) -> Tokens | Done:
        if self._ended:
            raise StopAsyncIteration
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        event = self._events.popleft()
        self._ended = not isinstance(event, Tokens)
        if isinstance(event, Failed):
            raise error_of(event)
        return event
