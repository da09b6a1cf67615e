"""One connection of an edge to a node, from its first byte to its last."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any

from skerry.errors import Unavailable
from skerry_regions.registry import Member
from skerry_regions.wire.connection import is_last
from skerry_regions.wire.edge_calls import EdgeAnswer, EdgeCall
from skerry_regions.wire.edge_connection import EdgeConnection
from skerry_regions.wire.frames import ProtocolError
from skerry_regions.wire.protocol import (
    Accepted,
    AnyEvent,
    Embed,
    Embedded,
    Event,
    Failed,
    Hello,
    Pong,
    ShareKV,
    Submit,
    Tokens,
)
from skerry_regions.wire.reports import Report
from skerry_regions.wire.sockets import ConnectionSocket

logger = logging.getLogger(__name__)

Sink = Callable[[Accepted | Event], None]
EmbedSink = Callable[[Embedded | Failed], None]
CallSink = Callable[[EdgeAnswer | Failed], None]


class LinkConnection(ConnectionSocket[EdgeConnection]):
    """Streams, embeddings, pings and reports over one `EdgeConnection`."""

    def __init__(
        self,
        node: str,
        hello: Hello,
        changed: Callable[[], None],
        on_report: Callable[[Report], None],
        last_stream: int = 0,
    ) -> None:
        """`last_stream` was that of the connection before."""
        super().__init__(EdgeConnection(hello, self._schedule_flush, last_stream=last_stream))
        self._node = node
        self._on_report = on_report
        self._pinged: dict[int, float] = {}  # when, by nonce, while unanswered
        self.rtt: float | None = None  # seconds, of the last ping
        self._changed = changed
        self._sinks: dict[int, Callable[[Any], None]] = {}
        """By stream. `EdgeConnection` passes on only events that belong on it."""
        self._pongs: list[Pong] = []
        self._nonces = itertools.count()
        self.lost = asyncio.Event()

    @property
    def greeted(self) -> bool:
        return self._connection.agreement is not None and not self.lost.is_set()

    @property
    def described(self) -> Member | None:
        """Return the node in its own words."""
        return self._connection.peer.member if self._connection.peer is not None else None

    @property
    def models(self) -> frozenset[str]:
        agreement = self._connection.agreement
        return agreement.models if agreement is not None else frozenset()

    @property
    def last_stream(self) -> int:
        return self._connection.last_stream

    @property
    def num_streams(self) -> int:
        return len(self._sinks)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._connection.receive(data):
                match message:
                    case Pong():
                        self._take_pong(message)
                    case Report():
                        self._on_report(message)
                    case Hello():  # the connection has taken note of it
                        self._changed()
                    case Tokens():
                        self._deliver(message)
                        self._connection.consumed(message.stream)
                    case _:
                        self._deliver(message)
        except ProtocolError as error:
            logger.warning("node %s broke the protocol: %s", self._node, error)
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost.set()
        self._changed()
        self.fail_streams()

    def fail_streams(self) -> None:
        """Fail every stream: nothing more comes from here."""
        message = f"the connection to node {self._node} was lost"
        for stream in list(self._sinks):
            self._connection.abort(stream)
            self._deliver(Failed(stream=stream, code=Unavailable.code, message=message))

    def submit(self, submit: Submit | Embed, sink: Callable[[Any], None]) -> int:
        return self._opened(self._connection.submit(submit), sink)

    def call(self, call: EdgeCall, sink: CallSink) -> int:
        return self._opened(self._connection.call(call), sink)

    def _opened(self, stream: int, sink: Callable[[Any], None]) -> int:
        self._sinks[stream] = sink
        return stream

    def consumed(self, stream: int) -> None:
        """Have more of an answer come: a part of it was taken off our hands."""
        self._connection.consumed(stream)

    def share_kv(self, share: ShareKV) -> None:
        self._connection.share_kv(share)

    def abort(self, stream: int) -> None:
        self._connection.abort(stream)

    def forget(self, stream: int) -> None:
        self._sinks.pop(stream, None)
        self.abort(stream)

    def want_snapshot(self, model: str) -> None:
        self._connection.want_snapshot(model)

    def ping(self) -> None:
        if self.greeted:
            nonce = next(self._nonces)
            self._pinged[nonce] = asyncio.get_running_loop().time()
            self._connection.ping(nonce)

    def _take_pong(self, pong: Pong) -> None:
        self._pongs.append(pong)
        if (sent := self._pinged.pop(pong.nonce, None)) is not None:
            self.rtt = asyncio.get_running_loop().time() - sent

    def take_pongs(self) -> list[Pong]:
        pongs, self._pongs = self._pongs, []
        return pongs

    def _deliver(self, event: Accepted | AnyEvent) -> None:
        ends = not isinstance(event, Accepted) and is_last(event)
        sink = self._sinks.pop(event.stream, None) if ends else self._sinks.get(event.stream)
        if sink is not None:
            sink(event)
