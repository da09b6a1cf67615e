"""TLS handshakes that count: each takes one of the listener's places, and only so long.

A server made by `loop.create_server` reports no connection before its handshake is done, and
gives it a minute: whoever opens many and says nothing would take every file that the process may
open, beyond all limits.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import ssl
from collections.abc import Callable

from skerry_edge.http.connections import ConnectionTable, Holder, network_of

BREATH_SECONDS = 1.0  # before accepting again, when the system refused

logger = logging.getLogger(__name__)


class HandshakePlace:
    """The place of a connection whose handshake goes on."""

    def __init__(self) -> None:
        self.handshake: asyncio.Task[None] | None = None

    def give_up(self) -> None:
        if self.handshake is not None:
            self.handshake.cancel()


class TLSListener:
    """Accepts at a socket, and hands a connection over once its handshake is done."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        protocol: Callable[[Holder], asyncio.Protocol],
        *,
        table: ConnectionTable,
        seconds: float,
    ) -> None:
        """Each handshake holds a place of the `table`, which `protocol` is given and takes over,
        and may take `seconds`. Needs the event loop that it is to run on."""
        self._listener = listener
        self._context = context
        self._protocol = protocol
        self._table = table
        self._seconds = seconds
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept(), name="accept")

    def leave(self) -> None:
        """Accept no more, and close the socket. Idempotent."""
        self._accepting.cancel()

    async def close(self, seconds: float = 0.0) -> None:
        """Leave, and drop whose handshake goes on after `seconds`."""
        self.leave()
        if self._handshakes and seconds > 0:
            await asyncio.wait(self._handshakes, timeout=seconds)
        for handshake in self._handshakes:
            handshake.cancel()
        await asyncio.gather(self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        with self._listener:
            while True:
                try:
                    connection, peer = await loop.sock_accept(self._listener)
                except OSError as error:  # no file is left, or the client has gone already
                    logger.warning("a connection was not accepted: %s", error)
                    await asyncio.sleep(BREATH_SECONDS)
                    continue
                self._begin(connection, network_of(peer))

    def _begin(self, connection: socket.socket, network: str) -> None:
        place = HandshakePlace()
        place.handshake = asyncio.create_task(
            self._shake_hands(connection, place), name="TLS handshake"
        )
        self._table.admit(place, network)
        self._handshakes.add(place.handshake)
        place.handshake.add_done_callback(functools.partial(self._over, place, connection))

    def _over(
        self, place: HandshakePlace, connection: socket.socket, handshake: asyncio.Task[None]
    ) -> None:
        self._handshakes.discard(handshake)
        self._table.release(place)
        if handshake.cancelled():  # maybe before it began
            connection.close()

    async def _shake_hands(self, connection: socket.socket, place: HandshakePlace) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol(place),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._seconds,
            )
        except OSError as error:  # of TLS too: it is the client's affair
            logger.info("a TLS handshake failed: %s", error)
            connection.close()
