"""Both ends of an edge-node connection as state machines: every rule about order lives here.

Sans-I/O: `receive(bytes)` gives the peer's messages, the other methods queue messages of ours, and
`data_to_send()` is what to write to the socket. The rules:

- `Hello` comes first, once, from both sides; the highest common version and smaller limits hold.
- The edge numbers streams upwards and never uses a number twice, so a message of a stream that is
  behind us is either harmless (`Abort`, `Credit`) or a fault (`Tokens`, `Done`, `Failed`).
- `Accepted` comes at most once, before any `Tokens`; a rejection is a `Failed` instead.
- `Tokens`, and `EdgeAnswer` but for the last, cost one credit each. Without credit the node holds
  them, and what follows, back.
- `Tokens.index` has no gap and no overlap: a token is never lost and never sent twice.
- `Done` or `Failed` comes exactly once, last; an aborted stream gets it too. A stream opened by
  `Embed` has no `Accepted` and no `Tokens`, and `Embedded` in place of `Done`; one opened by
  `EdgeCall` has `EdgeAnswer` alone, of which one `is_last`.

`EdgeConnection` and `NodeConnection` are the two ends. A breach by the peer raises `ProtocolError`,
and every later `receive` raises it again: drop the connection and give the `open_streams` to
another. A breach by the caller is a `RuntimeError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from msgspec import Struct

from skerry_regions.wire.edge_calls import EdgeAnswer
from skerry_regions.wire.frames import FrameDecoder, ProtocolError, encode
from skerry_regions.wire.protocol import AnyEvent, Hello, ModelBuild, Tokens

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


def agree(ours: Hello, theirs: Hello) -> Agreement | str:
    """Return the terms of a connection, or why there can be none."""
    common = set(ours.versions) & set(theirs.versions)
    if not common:
        return f"no common protocol version: we speak {ours.versions}, they {theirs.versions}"
    known = {model.id: model for model in ours.models}
    pairs = [(known[model.id], model) for model in theirs.models if model.id in known]
    return Agreement(
        version=max(common),
        max_streams=min(ours.max_streams, theirs.max_streams),
        window=min(ours.window, theirs.window),
        models=frozenset(mine.id for mine, other in pairs if _mean_the_same(mine, other)),
    )


def _mean_the_same(ours: ModelBuild, theirs: ModelBuild) -> bool:
    """Return whether token ids of one side mean the same to the other.

    Numeric builds are compared when both sides name one: an edge that leaves it open takes any.
    """
    builds = {ours.numeric_build, theirs.numeric_build} - {""}
    texts = ours.tokenizer, ours.template
    return texts == (theirs.tokenizer, theirs.template) and len(builds) < 2


def is_last(event: AnyEvent) -> bool:
    """Return whether a stream ends with this; if not, it costs credit."""
    return event.is_last if isinstance(event, EdgeAnswer) else not isinstance(event, Tokens)


class Connection(Generic[MessageT, StreamT]):
    """Either end: hello first, streams by number, an outbox, and dying once."""

    def __init__(self, hello: Hello, peer_messages: Any, on_queued: Callable[[], None]) -> None:
        """`on_queued` is called when there is more to send."""
        self._decoder: FrameDecoder[MessageT] = FrameDecoder(peer_messages)
        self._hello = hello
        self.agreement: Agreement | None = None  # in force; None before the peer's `Hello`
        self.peer: Hello | None = None
        self.open_streams: dict[int, StreamT] = {}  # without a last event so far, oldest first
        self.last_stream = 0  # that was opened
        self._outbox: list[bytes] = [encode(hello)]
        self._on_queued = on_queued
        self._error: ProtocolError | None = None

    def data_to_send(self) -> bytes:
        """Return bytes to write since the last call, possibly none."""
        data = b"".join(self._outbox)
        self._outbox.clear()
        return data

    def _send(self, message: Struct) -> None:
        self._outbox.append(encode(message))
        self._on_queued()

    def _messages(self, data: bytes) -> Iterator[MessageT]:
        """Yield the peer's messages after its `Hello`, which is handled here and passed on too."""
        if self._error is not None:
            raise self._error
        try:
            for message in self._decoder.feed(data):
                if isinstance(message, Hello):
                    self._greet(message)
                elif self.agreement is None:
                    raise self._fault(f"{type(message).__name__} before Hello")
                yield message
        except ProtocolError as error:
            self._error = error
            raise

    def _greet(self, hello: Hello) -> None:
        if self.agreement is not None:
            raise self._fault("a second Hello")
        terms = agree(self._hello, hello)
        if isinstance(terms, str):
            raise self._fault(terms)
        self.peer, self.agreement = hello, terms

    def _terms(self) -> Agreement:
        if self.agreement is None:
            raise RuntimeError("the peer has not said Hello yet")
        return self.agreement

    def _fault(self, what: str) -> ProtocolError:
        self._error = ProtocolError(what, self._decoder.frame_offset)
        return self._error
