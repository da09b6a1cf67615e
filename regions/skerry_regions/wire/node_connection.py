"""The node's end of an edge-node connection, and whom it hands streams to; `connection` has the
rules."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from skerry_regions.wire.connection import Connection, is_last
from skerry_regions.wire.edge_calls import EdgeAnswer, EdgeCall
from skerry_regions.wire.protocol import (
    Abort,
    Accepted,
    AnyEvent,
    Credit,
    EdgeMessage,
    Embed,
    Embedded,
    EngineBeat,
    Failed,
    Hello,
    Ping,
    Pong,
    ShareKV,
    SnapshotWanted,
    Submit,
)
from skerry_regions.wire.reports import Report


class Abortable(Protocol):
    """One request of a `Serving`; its last event comes whatever happens."""

    def abort(self) -> None:
        """Stop it. Idempotent, never fails."""
        ...


class RunningStream(Abortable, Protocol):
    """A stream of tokens."""

    @property
    def is_accepted(self) -> bool:
        """Return whether it is from the start; else `Accepted` comes, or `Failed`."""
        ...


class AnsweredCall(Abortable, Protocol):
    """An answer in parts."""

    def pause(self) -> None:
        """Make no more of it until `resume`: what was made waits."""
        ...

    def resume(self) -> None: ...


class Serving(Protocol):
    """What serves the streams: a node, or an edge that stands for its region. See `Node`."""

    def submit(
        self, submit: Submit, sink: Callable[[Accepted | AnyEvent], None]
    ) -> RunningStream: ...

    def embed(self, embed: Embed, sink: Callable[[Embedded | Failed], None]) -> Abortable: ...

    def call(self, call: EdgeCall, sink: Callable[[EdgeAnswer | Failed], None]) -> AnsweredCall: ...

    def share(self, share: ShareKV) -> None: ...

    def beats(self) -> list[EngineBeat]: ...

    def reports(self) -> list[Report]: ...

    def snapshots(self) -> list[Report]: ...


@dataclass(slots=True)
class _NodeStream:
    credit: int
    is_call: bool = False
    aborted: bool = False
    ended: bool = False  # the last event is known, though perhaps still held back
    # Events that wait for credit. The engine is not paused for a slow reader, so the bound is the
    # request's own: at most `max_tokens` events of output and one per chunk of the prompt. Whoever
    # answers a call waits.
    held: deque[AnyEvent] = field(default_factory=deque)


class NodeConnection(Connection[EdgeMessage, _NodeStream]):
    """The node's end: receives submits and aborts; sends events as far as credit goes."""

    def __init__(self, hello: Hello, on_queued: Callable[[], None] = lambda: None) -> None:
        super().__init__(hello, EdgeMessage, on_queued)

    def receive(
        self, data: bytes
    ) -> Iterator[
        Hello | Submit | Embed | EdgeCall | ShareKV | Abort | Credit | Ping | SnapshotWanted
    ]:
        """Yield the edge's messages; iterate to the end. `Abort` comes once, for running streams
        only, and `Credit` for calls.

        Raises `ProtocolError` after the last good message.
        """
        for message in self._messages(data):
            if isinstance(message, Submit | Embed | EdgeCall):
                self._open(message)
            elif isinstance(message, Credit):
                if not self._grant(message):
                    continue
            elif isinstance(message, Abort) and not self._abort(message):
                continue
            yield message

    def send(self, event: AnyEvent) -> None:
        """Pass an event of an open stream on, now or when credit allows.

        Raises `RuntimeError` for a stream that is not open or has had its last event, and
        `MessageTooLarge` (leaving the stream as it was).
        """
        stream = self.open_streams.get(event.stream)
        if stream is None or stream.ended:
            raise RuntimeError(f"{type(event).__name__} for stream {event.stream}: not open")
        if stream.aborted and not is_last(event):
            return
        stream.ended = is_last(event)
        stream.held.append(event)
        self._flush(event.stream, stream)

    def is_behind(self, stream: int) -> bool:
        """Return whether events of a stream wait for credit."""
        return stream in self.open_streams and bool(self.open_streams[stream].held)

    def accept(self, stream: int) -> None:
        """Say that a stream runs; before its first event, and not before a `Failed`."""
        self._send(Accepted(stream=stream))

    def report(self, report: Report) -> None:
        """Send how an engine does. Raises MessageTooLarge."""
        self._send(report)

    def pong(self, nonce: int, engines: list[EngineBeat]) -> None:
        self._send(Pong(nonce=nonce, engines=engines))

    def _open(self, submit: Submit | Embed | EdgeCall) -> None:
        if submit.stream <= self.last_stream:
            raise self._fault(f"stream {submit.stream} opened after stream {self.last_stream}")
        terms = self._terms()
        if len(self.open_streams) >= terms.max_streams:
            raise self._fault(f"more than {terms.max_streams} streams")
        self.last_stream = submit.stream
        is_call = isinstance(submit, EdgeCall)
        self.open_streams[submit.stream] = _NodeStream(terms.window, is_call)

    def _grant(self, credit: Credit) -> bool:
        """Send what waited for credit; return whether it is of a call that goes on."""
        self._check_opened(credit)
        stream = self.open_streams.get(credit.stream)
        if stream is None:
            return False
        stream.credit += credit.count
        if stream.credit > self._terms().window:
            raise self._fault(f"stream {credit.stream} given more credit than its window")
        self._flush(credit.stream, stream)
        return stream.is_call and not stream.ended

    def _abort(self, abort: Abort) -> bool:
        """Stop a stream's tokens; False when there is nothing left to stop."""
        self._check_opened(abort)
        stream = self.open_streams.get(abort.stream)
        if stream is None or stream.aborted:
            return False
        stream.aborted = True
        stream.held = deque(filter(is_last, stream.held))
        self._flush(abort.stream, stream)
        return not stream.ended

    def _check_opened(self, message: Abort | Credit) -> None:
        if message.stream > self.last_stream:
            name = type(message).__name__
            raise self._fault(f"{name} for stream {message.stream}, which was never opened")

    def _flush(self, number: int, stream: _NodeStream) -> None:
        while stream.held:
            if not is_last(stream.held[0]):
                if stream.credit == 0:
                    return
                stream.credit -= 1
            self._send(stream.held[0])
            stream.held.popleft()
        if stream.ended:
            del self.open_streams[number]
