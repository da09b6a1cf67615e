"""TLS handshakes that count: each takes one of the listener's places, and only so long.

A server made by `loop.create_server` tells nobody of a connection before its handshake is done, and
gives it a minute: whoever opens many and says nothing would take every file that the process may
open, beyond all limits.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

BREATH_SECONDS = 1.0  # before accepting again, when the system refused

logger = logging.getLogger(__name__)


class TLSListener:
    """Accepts at a socket, and hands a connection over once its handshake is done."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        protocol: Callable[[], asyncio.Protocol],
        *,
        has_room: Callable[[int], bool],
        seconds: float,
    ) -> None:
        """`has_room`, given how many handshakes go on, says whether another may begin; `seconds` is
        how long each may take. Needs the event loop that it is to run on."""
        self._listener = listener
        self._context = context
        self._protocol = protocol
        self._has_room = has_room
        self._seconds = seconds
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept(), name="accept")

    def leave(self) -> None:
        """Accept no more, and close the socket. Idempotent."""
        self._accepting.cancel()

    async def close(self) -> None:
        """Leave, and drop whose handshake goes on."""
        self.leave()
        for handshake in self._handshakes:
            handshake.cancel()
        await asyncio.gather(self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        with self._listener:
            while True:
                try:
                    connection, _ = await loop.sock_accept(self._listener)
                except OSError as error:  # no file is left, or the client has gone already
                    logger.warning("a connection was not accepted: %s", error)
                    await asyncio.sleep(BREATH_SECONDS)
                    continue
                if self._has_room(len(self._handshakes)):
                    self._begin(connection)
                else:
                    connection.close()  # what is not TLS would not be understood

    def _begin(self, connection: socket.socket) -> None:
        handshake = asyncio.create_task(self._shake_hands(connection), name="TLS handshake")
        self._handshakes.add(handshake)
        handshake.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._seconds,
            )
        except OSError as error:  # of TLS too: it is the client's affair
            logger.info("a TLS handshake failed: %s", error)
            connection.close()
