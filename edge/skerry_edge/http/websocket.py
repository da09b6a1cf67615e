"""WebSocket (RFC 6455) over an answer of 101: whole text messages in and out, within bounds.

    connection ──▶ tunnel ──▶ wsproto ──▶ `messages`
                     ◀──────── wsproto ◀── `send`

wsproto reads and writes the frames. It agrees on no extension here: a compressed message could
become a thousand times its size.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from starlette.types import Message, Receive, Send
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason

from skerry.errors import SkerryError
from skerry_edge.http.exchange import FINISHING
from skerry_edge.limits import Limits

TURN_EVENTS = 64  # looked at before anything else is done: half a millisecond
MAX_EMPTY = 1024  # pings, pongs and fragments between two messages, or two of our pings
STUCK_SECONDS = 0.3  # that a client may take to read what comes before the end

GOING_AWAY = CloseReason.SERVICE_RESTART  # clients connect again
NORMAL = CloseReason.NORMAL_CLOSURE
REFUSED = CloseReason.POLICY_VIOLATION


class WebSocket:
    """One connection that has switched. One task reads `messages`; any may send."""

    def __init__(
        self,
        receive: Receive,
        send: Send,
        limits: Limits,
        *,
        hold: Callable[[int], None],
        finish: Callable[[], None],
    ) -> None:
        """Take ASGI's `receive` and `send` of the request that switches.

        `hold` counts the bytes of a message as it comes, and raises a `SkerryError` where there is
        no room for more; those of one that is given up, with a minus. `finish` is called when the
        server wants the connection to end.
        """
        self._receive = receive
        self._send = send
        self._limits = limits
        self._hold = hold
        self._finish = finish
        self._frames = Connection(ConnectionType.SERVER)
        self._loop = asyncio.get_running_loop()
        self._patience: asyncio.Timeout | None = None  # of the read in progress
        self._closes_at: float | None = None  # on the loop's clock: the client agreed, or not
        self._pieces: list[bytes] = []  # of the message in progress
        self._size = 0
        self._refusal: SkerryError | None = None  # of the message in progress
        self._num_empty = 0
        self._is_pinged = self._is_stuck = False
        self.code: int = CloseReason.ABNORMAL_CLOSURE  # with which it was closed, by whomever

    async def accept(self) -> None:
        """Switch protocols. What the answer has beside its status is given elsewhere."""
        await self._send({"type": "http.response.start", "status": 101, "headers": []})

    async def send(self, text: bytes) -> None:
        """Send a text, encoded in UTF-8, once the client has read enough of what was sent before.
        What is sent to a client that is gone, or to be gone, is dropped."""
        await self._write(TextMessage(data=text.decode()))

    async def close(self, code: int, reason: str) -> None:
        """Begin to close: nothing more is sent, and `messages` ends as soon as the client agrees,
        or after `linger_seconds`; soon for one that does not even read. Idempotent."""
        if self._frames.state is not ConnectionState.OPEN:
            return
        self.code = code
        self._closes_at = self._loop.time() + self._limits.linger_seconds
        try:
            async with asyncio.timeout(STUCK_SECONDS):
                await self._write(CloseConnection(code=code, reason=reason))
        except TimeoutError:
            self._is_stuck = True
            self._closes_at = self._loop.time()
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(self._closes_at)

    async def end(self) -> None:
        """Close the connection itself; one whose client reads nothing is aborted by the server."""
        if not self._is_stuck:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def messages(self) -> AsyncGenerator[bytes | SkerryError]:
        """Yield texts as they come, encoded in UTF-8, or why there was no room for one.

        Ends when the connection is closed, or is to be for what the client has sent. A client that
        is silent is sent a ping every `ping_seconds`, and counts as gone when it answers none.
        """
        while (data := await self._read()) is not None:
            self._frames.receive_data(data)
            for number, event in enumerate(self._frames.events(), 1):
                if number % TURN_EVENTS == 0:
                    await asyncio.sleep(0)
                match event:
                    case TextMessage():
                        piece = event.data.encode()
                        self._size += len(piece)
                        if self._size > self._limits.body_bytes:
                            most = f"A message has at most {self._limits.body_bytes} bytes."
                            await self.close(CloseReason.MESSAGE_TOO_BIG, most)
                        elif (message := self._taken(piece, event.message_finished)) is not None:
                            yield message
                    case BytesMessage():
                        await self.close(CloseReason.UNSUPPORTED_DATA, "Send text.")
                    case Ping():
                        self._num_empty += 1
                        await self._write(event.response())
                    case Pong():
                        self._num_empty += 1
                    case CloseConnection():  # the client's, or for what cannot be read
                        if self._closes_at is None:
                            self.code = event.code
                            await self._write(CloseConnection(event.code, event.reason))
                        return
                    case _:
                        raise TypeError(f"no event of an open connection: {event}")
                if self._num_empty > MAX_EMPTY:
                    await self.close(REFUSED, "Too many frames without a message.")
                if self._frames.state is ConnectionState.LOCAL_CLOSING:
                    self._drop()

    def _taken(self, piece: bytes, is_last: bool) -> bytes | SkerryError | None:
        """Take in a piece of a message; returns the message once it is whole."""
        if self._frames.state is not ConnectionState.OPEN:
            return None
        if piece and self._refusal is None:
            try:
                self._hold(len(piece))
                self._pieces.append(piece)
            except SkerryError as refusal:
                self._hold(-sum(map(len, self._pieces)))
                self._pieces, self._refusal = [], refusal
        if not is_last:
            self._num_empty += 1
            return None
        message = self._refusal or b"".join(self._pieces)
        self._drop()
        return message

    def _drop(self) -> None:
        """Begin another message."""
        self._pieces, self._size, self._num_empty, self._refusal = [], 0, 0, None

    async def _read(self) -> bytes | None:
        """Return bytes of the client's; None when there will be none, or none are waited for."""
        while self._closes_at is None or self._loop.time() < self._closes_at:
            end = self._closes_at or self._loop.time() + self._limits.ping_seconds
            try:
                async with asyncio.timeout_at(end) as self._patience:
                    message: Message = await self._receive()
            except TimeoutError:
                if self._is_pinged:
                    return None
                if self._closes_at is None:
                    self._is_pinged, self._num_empty = True, 0
                    await self._write(Ping())
                continue
            finally:
                self._patience = None
            if message["type"] == FINISHING:
                self._finish()
            elif message["type"] == "http.disconnect":
                return None
            elif message["body"]:
                self._is_pinged = False
                body: bytes = message["body"]
                return body
        return None

    async def _write(self, event: Event) -> None:
        """Send one frame: encoded whole, so that those of several tasks do not mix."""
        states = (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING)
        if self._frames.state not in states:
            return
        data = bytes(self._frames.send(event))
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
