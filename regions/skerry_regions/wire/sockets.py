"""A link's end of a socket, and the same with a `Connection` whose messages leave in few writes."""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar, cast


class Outbox(Protocol):
    """What a `Connection` is to its socket; processes without one need not import it."""

    def data_to_send(self) -> bytes: ...


ConnectionT = TypeVar("ConnectionT", bound=Outbox)


class SocketEnd(asyncio.Protocol):
    """A protocol that has its transport from when the connection is made until it is lost."""

    _transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class ConnectionSocket(SocketEnd, Generic[ConnectionT]):
    """Sends what its connection has to send: all of one turn of the loop in one write."""

    def __init__(self, connection: ConnectionT) -> None:
        """The connection calls `_schedule_flush` when it has more."""
        self._connection = connection
        self._flush_scheduled = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled and self._transport is not None:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._transport is not None and (data := self._connection.data_to_send()):
            self._transport.write(data)
