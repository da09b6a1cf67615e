"""The edge's end of an edge-node connection; `connection` has the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from skerry.errors import Overloaded, Unavailable
from skerry_regions.wire.connection import MAX_STREAM_ID, Connection, is_last
from skerry_regions.wire.edge_calls import EdgeAnswer, EdgeCall
from skerry_regions.wire.protocol import (
    Abort,
    Accepted,
    AnyEvent,
    Credit,
    Done,
    Embed,
    Embedded,
    Failed,
    Hello,
    NodeMessage,
    Ping,
    Pong,
    ShareKV,
    SnapshotWanted,
    Submit,
    Tokens,
)
from skerry_regions.wire.reports import Report

Kind = Literal["tokens", "embedding", "call"]
EVENTS: dict[Kind, tuple[type, ...]] = {
    "tokens": (Accepted, Tokens, Done, Failed),
    "embedding": (Embedded, Failed),
    "call": (EdgeAnswer, Failed),
}


@dataclass(slots=True)
class _EdgeStream:
    next_index: int  # output position of the next token
    credit: int  # Tokens events the node may still send
    consumed: int = 0  # events read by our caller, credit for them not yet sent
    kind: Kind = "tokens"
    accepted: bool = False
    aborted: bool = False


class EdgeConnection(Connection[NodeMessage, _EdgeStream]):
    """The edge's end: submits, aborts and grants credit; receives events."""

    def __init__(
        self, hello: Hello, on_queued: Callable[[], None] = lambda: None, *, last_stream: int = 0
    ) -> None:
        """`last_stream` was that of the connection before: what is said of its streams is said of
        none of ours."""
        super().__init__(hello, NodeMessage, on_queued)
        self.last_stream = last_stream if last_stream <= MAX_STREAM_ID // 2 else 0

    def submit(self, submit: Submit | Embed) -> int:
        """Open a stream and return its number; `submit.stream` is replaced by it.

        Raises `Overloaded` when the connection has all the streams it may have, and `Unavailable`
        when the two sides do not mean the same by the model's token ids, or the node is too old for
        what the request wants.
        """
        terms = self._terms()
        if submit.model not in terms.models:
            raise Unavailable(f"the node does not serve {submit.model} as this edge knows it")
        if terms.version < 2 and isinstance(submit, Submit):
            submit = _in_first_version(submit)
        if isinstance(submit, Embed):
            return self._open(submit, "embedding")
        return self._open(submit, "tokens", len(submit.output_ids))

    def call(self, call: EdgeCall) -> int:
        """Have the edge at the other end answer a request. Raises as `submit`."""
        if self._terms().version < 3:
            raise Unavailable("the other edge is of a version that answers no other zone's clients")
        return self._open(call, "call")

    def _open(self, message: Submit | Embed | EdgeCall, kind: Kind, next_index: int = 0) -> int:
        terms = self._terms()
        if len(self.open_streams) >= terms.max_streams or self.last_stream >= MAX_STREAM_ID:
            raise Overloaded(f"all {terms.max_streams} streams to this node are taken")
        stream = self.last_stream + 1
        self._send(msgspec.structs.replace(message, stream=stream))
        self.last_stream = stream
        self.open_streams[stream] = _EdgeStream(next_index, terms.window, kind=kind)
        return stream

    def abort(self, stream: int) -> None:
        """Have the node stop. Its last event still comes. Harmless after the end, or twice."""
        state = self.open_streams.get(stream)
        if state is not None and not state.aborted:
            state.aborted = True
            self._send(Abort(stream=stream))

    def consumed(self, stream: int, events: int = 1) -> None:
        """Say that `events` that cost credit were taken off our hands, so that more may come.

        Credit is sent by the half window, not by the event.
        """
        state = self.open_streams.get(stream)
        if state is None or state.aborted:
            return
        window = self._terms().window
        state.consumed += events
        if state.consumed > window - state.credit:
            raise RuntimeError(f"stream {stream}: more events consumed than were received")
        if 2 * state.consumed >= window:
            self._send(Credit(stream=stream, count=state.consumed))
            state.credit += state.consumed
            state.consumed = 0

    def ping(self, nonce: int) -> None:
        self._send(Ping(nonce=nonce))

    def share_kv(self, share: ShareKV) -> None:
        """Have the node send KV to another. Raises `Unavailable` as `submit` does."""
        if share.model not in self._terms().models:
            raise Unavailable(f"the node does not serve {share.model} as this edge knows it")
        self._send(share)

    def want_snapshot(self, model: str) -> None:
        self._send(SnapshotWanted(model=model))

    def receive(self, data: bytes) -> Iterator[Hello | Accepted | AnyEvent | Pong | Report]:
        """Yield the node's messages; iterate to the end. Tokens of aborted streams are left out.

        Raises `ProtocolError` after the last good message.
        """
        for message in self._messages(data):
            if isinstance(message, Hello | Pong | Report) or self._accept(message):
                yield message

    def _accept(self, event: Accepted | AnyEvent) -> bool:
        """Check an event against its stream; return False when none waits for it any more."""
        stream = self.open_streams.get(event.stream)
        if stream is None:
            past = "after the end of" if event.stream <= self.last_stream else "for the unopened"
            raise self._fault(f"{type(event).__name__} {past} stream {event.stream}")
        if not isinstance(event, EVENTS[stream.kind]):
            raise self._fault(f"{type(event).__name__} does not belong on stream {event.stream}")
        if isinstance(event, Accepted):
            if stream.accepted:
                raise self._fault(f"Accepted late or twice on stream {event.stream}")
            stream.accepted = True
            return not stream.aborted
        if is_last(event):
            del self.open_streams[event.stream]
            return True
        if stream.credit == 0:
            raise self._fault(f"{type(event).__name__} without credit on stream {event.stream}")
        stream.credit -= 1
        if not isinstance(event, Tokens):
            return not stream.aborted
        if event.index != stream.next_index:
            raise self._fault(
                f"Tokens at index {event.index} on stream {event.stream}, "
                f"expected {stream.next_index}"
            )
        stream.accepted = True
        stream.next_index += len(event.token_ids)
        return not stream.aborted


def _in_first_version(submit: Submit) -> Submit:
    """Return what a node of the protocol's first version is sent: a cache may do without pins, and
    usage then says that nothing was kept. Raises `Unavailable` for a limit, which must hold."""
    if submit.reasoning is not None:
        raise Unavailable("the node is of a version that does not limit reasoning")
    return msgspec.structs.replace(submit, pins=())
