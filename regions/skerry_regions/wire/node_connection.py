"""The node's end of an edge-node connection; `connection` has the rules."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from skerry_regions.wire.connection import Connection
from skerry_regions.wire.protocol import (
    Abort,
    Accepted,
    AnyEvent,
    Credit,
    EdgeMessage,
    Embed,
    EngineBeat,
    Hello,
    Ping,
    Pong,
    ShareKV,
    SnapshotWanted,
    Submit,
    Tokens,
)
from skerry_regions.wire.reports import Report


@dataclass(slots=True)
class _NodeStream:
    credit: int
    aborted: bool = False
    ended: bool = False  # the last event is known, though perhaps still held back
    # Events that wait for credit. The engine is not paused for a slow reader, so the bound is the
    # request's own: at most `max_tokens` events of output and one per chunk of the prompt.
    held: deque[AnyEvent] = field(default_factory=deque)


class NodeConnection(Connection[EdgeMessage, _NodeStream]):
    """The node's end: receives submits and aborts; sends events as far as credit goes."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello, EdgeMessage)

    def receive(
        self, data: bytes
    ) -> Iterator[Hello | Submit | Embed | ShareKV | Abort | Ping | SnapshotWanted]:
        """Yield the edge's messages; iterate to the end. `Abort` comes once, for running streams
        only.

        Raises `ProtocolError` after the last good message.
        """
        for message in self._messages(data):
            if isinstance(message, Submit | Embed):
                self._open(message)
            elif isinstance(message, Credit):
                self._grant(message)
                continue
            elif isinstance(message, Abort) and not self._abort(message):
                continue
            yield message

    def send(self, event: AnyEvent) -> None:
        """Pass an event of an open stream on, now or when credit allows.

        Raises `RuntimeError` for a stream that is not open or has had its last event, and
        `MessageTooLarge` (leaving the stream as it was).
        """
        stream = self._streams.get(event.stream)
        if stream is None or stream.ended:
            raise RuntimeError(f"{type(event).__name__} for stream {event.stream}: not open")
        if stream.aborted and isinstance(event, Tokens):
            return
        stream.ended = not isinstance(event, Tokens)
        stream.held.append(event)
        self._flush(event.stream, stream)

    def accept(self, stream: int) -> None:
        """Say that a stream runs; before its first event, and not before a `Failed`."""
        self._send(Accepted(stream=stream))

    def report(self, report: Report) -> None:
        """Send how an engine does. Raises MessageTooLarge."""
        self._send(report)

    def pong(self, nonce: int, engines: list[EngineBeat]) -> None:
        self._send(Pong(nonce=nonce, engines=engines))

    def _open(self, submit: Submit | Embed) -> None:
        if submit.stream <= self._last_stream:
            raise self._fault(f"stream {submit.stream} opened after stream {self._last_stream}")
        terms = self._terms()
        if len(self._streams) >= terms.max_streams:
            raise self._fault(f"more than {terms.max_streams} streams")
        self._last_stream = submit.stream
        self._streams[submit.stream] = _NodeStream(terms.window)

    def _grant(self, credit: Credit) -> None:
        self._check_opened(credit)
        stream = self._streams.get(credit.stream)
        if stream is None:
            return
        stream.credit += credit.count
        if stream.credit > self._terms().window:
            raise self._fault(f"stream {credit.stream} given more credit than its window")
        self._flush(credit.stream, stream)

    def _abort(self, abort: Abort) -> bool:
        """Stop a stream's tokens; False when there is nothing left to stop."""
        self._check_opened(abort)
        stream = self._streams.get(abort.stream)
        if stream is None or stream.aborted:
            return False
        stream.aborted = True
        stream.held = deque(event for event in stream.held if not isinstance(event, Tokens))
        self._flush(abort.stream, stream)
        return not stream.ended

    def _check_opened(self, message: Abort | Credit) -> None:
        if message.stream > self._last_stream:
            name = type(message).__name__
            raise self._fault(f"{name} for stream {message.stream}, which was never opened")

    def _flush(self, number: int, stream: _NodeStream) -> None:
        while stream.held:
            if isinstance(stream.held[0], Tokens):
                if stream.credit == 0:
                    return
                stream.credit -= 1
            self._send(stream.held[0])
            stream.held.popleft()
        if stream.ended:
            del self._streams[number]
