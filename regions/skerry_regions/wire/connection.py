"""Both ends of an edge-node connection as state machines: every rule about order lives here.

Sans-I/O: `receive(bytes)` gives the peer's messages, the other methods queue messages of ours, and
`data_to_send()` is what to write to the socket. The rules:

- `Hello` comes first, once, from both sides; the highest common version and smaller limits hold.
- The edge numbers streams upwards and never uses a number twice, so a message of a stream that is
  behind us is either harmless (`Abort`, `Credit`) or a fault (`Tokens`, `Done`, `Failed`).
- `Accepted` comes at most once, before any `Tokens`; a rejection is a `Failed` instead.
- `Tokens` cost one credit each. Without credit the node holds them, and what follows, back.
- `Tokens.index` has no gap and no overlap: a token is never lost and never told twice.
- `Done` or `Failed` comes exactly once, last; an aborted stream gets it too. A stream opened by
  `Embed` has no `Accepted` and no `Tokens`, and `Embedded` in place of `Done`.

A breach by the peer raises `ProtocolError`, and every later `receive` raises it again: drop the
connection and give the `open_streams` to another. A breach by the caller is a `RuntimeError`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from skerry.errors import Overloaded, Unavailable
from skerry_regions.wire.frames import FrameDecoder, ProtocolError, encode
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
    ModelBuild,
    NodeMessage,
    Ping,
    Pong,
    Report,
    ShareKV,
    SnapshotWanted,
    Submit,
    Tokens,
)

MAX_STREAM_ID = (1 << 32) - 1

MessageT = TypeVar("MessageT")
StreamT = TypeVar("StreamT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What two `Hello`s add up to."""

    version: int
    max_streams: int
    window: int  # Tokens events per stream
    models: frozenset[str]  # ids that both know under the same tokenizer and template
    mismatches: tuple[str, ...]  # one sentence for each model that both know differently


def agree(ours: Hello, theirs: Hello) -> Agreement | str:
    """The terms of a connection, or why there can be none."""
    common = set(ours.versions) & set(theirs.versions)
    if not common:
        return f"no common protocol version: we speak {ours.versions}, they {theirs.versions}"
    known = {model.id: model for model in ours.models}
    pairs = [(known[model.id], model) for model in theirs.models if model.id in known]
    mismatches = {mine.id: why for mine, other in pairs if (why := _mismatch(mine, other))}
    return Agreement(
        version=max(common),
        max_streams=min(ours.max_streams, theirs.max_streams),
        window=min(ours.window, theirs.window),
        models=frozenset(mine.id for mine, _ in pairs) - mismatches.keys(),
        mismatches=tuple(mismatches.values()),
    )


def _mismatch(ours: ModelBuild, theirs: ModelBuild) -> str | None:
    """Why token ids of one side mean something else to the other; None when they do not.

    Numeric builds are compared when both sides name one: an edge that leaves it open takes any.
    """
    for name in ("tokenizer", "template", "numeric_build"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        if mine != other and (name != "numeric_build" or (mine and other)):
            return f"{ours.id}: our {name} is {mine!r}, theirs is {other!r}"
    return None


class _Connection(Generic[MessageT, StreamT]):
    """What both ends share: hello first, streams by number, an outbox, and dying once."""

    def __init__(self, hello: Hello, peer_messages: Any) -> None:
        self._decoder: FrameDecoder[MessageT] = FrameDecoder(peer_messages)
        self._hello = hello
        self._agreement: Agreement | None = None
        self._peer: Hello | None = None
        self._streams: dict[int, StreamT] = {}
        self._last_stream = 0
        self._outbox: list[bytes] = [encode(hello)]
        self._error: ProtocolError | None = None

    @property
    def agreement(self) -> Agreement | None:
        """The terms in force; None before the peer's `Hello`."""
        return self._agreement

    @property
    def peer(self) -> Hello | None:
        return self._peer

    @property
    def open_streams(self) -> tuple[int, ...]:
        """Streams without a `Done` or `Failed` so far, oldest first."""
        return tuple(self._streams)

    def data_to_send(self) -> bytes:
        """Bytes to write since the last call, possibly none."""
        data = b"".join(self._outbox)
        self._outbox.clear()
        return data

    def _send(self, message: Struct) -> None:
        self._outbox.append(encode(message))

    def _messages(self, data: bytes) -> Iterator[MessageT]:
        """The peer's messages after its `Hello`, which is handled here and passed on too."""
        if self._error is not None:
            raise self._error
        try:
            for message in self._decoder.feed(data):
                if isinstance(message, Hello):
                    self._greet(message)
                elif self._agreement is None:
                    raise self._fault(f"{type(message).__name__} before Hello")
                yield message
        except ProtocolError as error:
            self._error = error
            raise

    def _greet(self, hello: Hello) -> None:
        if self._agreement is not None:
            raise self._fault("a second Hello")
        terms = agree(self._hello, hello)
        if isinstance(terms, str):
            raise self._fault(terms)
        self._peer, self._agreement = hello, terms

    def _terms(self) -> Agreement:
        if self._agreement is None:
            raise RuntimeError("the peer has not said Hello yet")
        return self._agreement

    def _fault(self, what: str) -> ProtocolError:
        self._error = ProtocolError(what, self._decoder.frame_offset)
        return self._error


@dataclass(slots=True)
class _EdgeStream:
    next_index: int  # output position of the next token
    credit: int  # Tokens events the node may still send
    consumed: int = 0  # events read by our caller, credit for them not yet sent
    embeds: bool = False
    accepted: bool = False
    aborted: bool = False


class EdgeConnection(_Connection[NodeMessage, _EdgeStream]):
    """The edge's end: submits, aborts and grants credit; receives events."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello, NodeMessage)

    def submit(self, submit: Submit | Embed) -> int:
        """Open a stream and return its number; `submit.stream` is replaced by it.

        Raises `Overloaded` when the connection has all the streams it may have, and `Unavailable`
        when the two sides do not mean the same by the model's token ids.
        """
        terms = self._terms()
        if submit.model not in terms.models:
            raise Unavailable(f"the node does not serve {submit.model} as this edge knows it")
        if len(self._streams) >= terms.max_streams or self._last_stream >= MAX_STREAM_ID:
            raise Overloaded(f"all {terms.max_streams} streams to this node are taken")
        stream = self._last_stream + 1
        self._send(msgspec.structs.replace(submit, stream=stream))
        self._last_stream = stream
        first = len(submit.output_ids) if isinstance(submit, Submit) else 0
        self._streams[stream] = _EdgeStream(first, terms.window, embeds=isinstance(submit, Embed))
        return stream

    def abort(self, stream: int) -> None:
        """Ask the node to stop. Its last event still comes. Harmless after the end, or twice."""
        state = self._streams.get(stream)
        if state is not None and not state.aborted:
            state.aborted = True
            self._send(Abort(stream=stream))

    def consumed(self, stream: int, events: int = 1) -> None:
        """Say that `events` Tokens events were taken off our hands, so that more may come.

        Credit is sent by the half window, not by the event.
        """
        state = self._streams.get(stream)
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
        """The node's messages; iterate to the end. Tokens of aborted streams are left out.

        Raises `ProtocolError` after the last good message.
        """
        for message in self._messages(data):
            if isinstance(message, Hello | Pong | Report) or self._accept(message):
                yield message

    def _accept(self, event: Accepted | AnyEvent) -> bool:
        """Check an event against its stream; False when nobody waits for it any more."""
        stream = self._streams.get(event.stream)
        if stream is None:
            past = "after the end of" if event.stream <= self._last_stream else "for the unopened"
            raise self._fault(f"{type(event).__name__} {past} stream {event.stream}")
        if stream.embeds != isinstance(event, Embedded) and not isinstance(event, Failed):
            raise self._fault(f"{type(event).__name__} does not belong on stream {event.stream}")
        if isinstance(event, Accepted):
            if stream.accepted:
                raise self._fault(f"Accepted late or twice on stream {event.stream}")
            stream.accepted = True
            return not stream.aborted
        if not isinstance(event, Tokens):
            del self._streams[event.stream]
            return True
        if stream.credit == 0:
            raise self._fault(f"Tokens without credit on stream {event.stream}")
        if event.index != stream.next_index:
            raise self._fault(
                f"Tokens at index {event.index} on stream {event.stream}, "
                f"expected {stream.next_index}"
            )
        stream.accepted = True
        stream.credit -= 1
        stream.next_index += len(event.token_ids)
        return not stream.aborted


@dataclass(slots=True)
class _NodeStream:
    credit: int
    aborted: bool = False
    ended: bool = False  # the last event is known, though perhaps still held back
    # Events that wait for credit. The engine is not paused for a slow reader, so the bound is the
    # request's own: at most `max_tokens` events of output and one per chunk of the prompt.
    held: deque[AnyEvent] = field(default_factory=deque)


class NodeConnection(_Connection[EdgeMessage, _NodeStream]):
    """The node's end: receives submits and aborts; sends events as far as credit goes."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello, EdgeMessage)

    def receive(
        self, data: bytes
    ) -> Iterator[Hello | Submit | Embed | ShareKV | Abort | Ping | SnapshotWanted]:
        """The edge's messages; iterate to the end. `Abort` comes once, for running streams only.

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
        """Tell the edge that its stream runs; before its first event, and not before a `Failed`."""
        self._send(Accepted(stream=stream))

    def report(self, report: Report) -> None:
        """Tell how an engine does. Raises MessageTooLarge."""
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
