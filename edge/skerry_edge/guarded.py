"""One connection of a client, bounded: uvicorn's h11 protocol with the deadlines that it lacks.

uvicorn by itself waits for ever for a header or a body and bounds neither (measured: a half-sent
header stays open, 1 MiB of header and 20,000 fields are served). `GuardedProtocol` adds the missing
deadlines and sizes around uvicorn's own h11 protocol, and refuses with a short JSON body.

h11 was chosen by measurement: sending one streamed piece costs it 2.6 µs, reading a typical request
51 µs; the parser's strictness is worth more than what a C parser would save.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any

import h11
import msgspec
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle

from skerry_edge.head import (
    BLANK_LINE,
    TOO_MANY_CONNECTIONS,
    TOO_SLOW_BODY,
    TOO_SLOW_HEADER,
    Refusal,
    body_too_large,
    check_head,
    check_partial,
    malformed,
    target_of,
)
from skerry_edge.limits import Limits

TICK_SECONDS = 1.0  # how often an upload's pace is looked at

logger = logging.getLogger(__name__)


class GuardedProtocol(H11Protocol):
    """One connection. Heads are judged before h11 sees them; slow or endless senders are refused.

    What a client sends ahead of an answer waits its turn, up to `header_bytes`; of one that sends
    more, the rest is dropped and the connection closed after the answer (RFC 9112, 9.3.2).
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: Limits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = self._guard = GuardedConnection(limits)
        self._limits = limits
        self._head = bytearray()
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._body_since = 0.0  # loop time at which the head was complete
        self._refused = False
        self._is_last = False  # the exchange to come, or in progress

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if certificate := client_certificate(transport):
            self.app = showing(self.app, certificate)
        if len(self.connections) > self._limits.max_connections:
            self._refused = True  # and not lingered over: these are not bounded otherwise
            transport.write(refusal_response(TOO_MANY_CONNECTIONS))
            transport.close()
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._body_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return  # lingering: read and dropped, so that the refusal is not lost in a reset
        if self.conn.their_state is h11.IDLE:
            self._receive_head(data)
        elif self.conn.their_state is h11.SEND_BODY or self.cycle.keep_alive:
            self._receive(data)

    def _receive_head(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._head_timer is None:
            self._expect_head()
        if not self._head:
            data = data.lstrip(b"\r\n")  # RFC 9112, 2.2: empty lines before a request are ignored
        searched = max(0, len(self._head) - len(BLANK_LINE) + 1)
        self._head += data
        end = self._head.find(BLANK_LINE, searched)
        if end < 0:
            refusal = check_partial(bytes(self._head), self._limits)
        else:
            refusal = check_head(bytes(self._head[: end + len(BLANK_LINE)]), self._limits)
        if refusal is not None:
            self._refuse(refusal)
        elif end >= 0:
            message, self._head = bytes(self._head), bytearray()
            self._guard.body_limit = self._limits.body_limit(target_of(message))
            self._head_received()
            self._receive(message)

    def _receive(self, data: bytes) -> None:
        """Give bytes of an approved message, and of what follows it, to h11."""
        super().data_received(data)
        if self._is_last and self.cycle is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self._make_last(self.cycle)
        if self.conn.their_state is not h11.SEND_BODY:
            self._cancel_body_timer()
            if len(self.conn.trailing_data[0]) > self._limits.header_bytes:
                self.cycle.keep_alive = False  # the connection ends with this answer
        self._receive_ahead()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._receive_ahead()

    def finish(self) -> bool:
        """Close after the exchange in progress or to come, and say so in its answer; whether the
        client has none in progress."""
        self._is_last = True
        cycle = self.cycle  # None before the first request, whatever its annotation says
        if cycle is None or cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            return not self._head
        self._make_last(cycle)
        return False

    def _make_last(self, cycle: RequestResponseCycle) -> None:
        """Close the connection after this exchange, and tell the client if there is still time."""
        if cycle.keep_alive and not cycle.response_started:
            cycle.default_headers = [*cycle.default_headers, (b"connection", b"close")]
        cycle.keep_alive = False

    def _receive_ahead(self) -> None:
        """Bytes behind a finished exchange begin the next request; its head is judged as any."""
        if self.conn.their_state is h11.IDLE and (ahead := self.conn.trailing_data[0]):
            self.conn = self._guard = GuardedConnection(self._limits)
            self._receive_head(ahead)

    # Deadlines

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(
            self._limits.header_seconds, self._refuse, TOO_SLOW_HEADER
        )

    def _head_received(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._guard.body_size = 0
        self._guard.head_approved = True
        self._body_since = self.loop.time()
        self._body_timer = self.loop.call_later(TICK_SECONDS, self._check_pace)

    def _check_pace(self) -> None:
        elapsed = self.loop.time() - self._body_since
        limits = self._limits
        slow = self._guard.body_size < limits.body_bytes_per_second * elapsed
        if elapsed > limits.body_seconds or (slow and elapsed > limits.body_grace_seconds):
            self._refuse(TOO_SLOW_BODY)
        else:
            self._body_timer = self.loop.call_later(TICK_SECONDS, self._check_pace)

    def _cancel_body_timer(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # Refusals

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when h11 refuses; h11's own words say what is wrong."""
        self._refuse(self._guard.refusal or malformed(msg))

    def _refuse(self, refusal: Refusal) -> None:
        """Answer if nothing was answered yet, then close, giving the client time to read it."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._cancel_body_timer()
        if self._head_timer is not None:
            self._head_timer.cancel()
        logger.info("refused a connection: %d %s", refusal.status, refusal.message)
        cycle = self.cycle  # None before the first request, whatever its annotation says
        if cycle is not None and not cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            cycle.disconnected = True  # the application is told, and can no longer answer
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.abort()
                return
        self.transport.resume_reading()
        if self.conn.our_state is not h11.DONE:  # else the answer is out, and only its request lags
            self.transport.write(refusal_response(refusal))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(self._limits.linger_seconds, self.transport.abort)


class GuardedConnection(h11.Connection):
    """h11's server side; bounds bodies of unknown length, and remembers why it refused."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        self.body_limit = limits.body_bytes  # of the request in progress
        self.body_size = 0
        self.head_approved = False  # the next request's head has passed `check_head`
        self.refusal: Refusal | None = None

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state is h11.IDLE and not self.head_approved:
            return h11.NEED_DATA  # what is buffered has not been judged
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as exc:
            self.refusal = self.refusal or malformed(f"{exc}.")
            raise
        if isinstance(event, h11.Request):
            self.head_approved = False
        elif isinstance(event, h11.Data):
            self.body_size += len(event.data)
            if self.body_size > self.body_limit:
                self.refusal = body_too_large(self.body_limit)
                raise h11.RemoteProtocolError(self.refusal.message)
        return event


def client_certificate(transport: asyncio.BaseTransport) -> str:
    """As PEM, proven by the handshake; empty where none was asked for or shown."""
    tls = transport.get_extra_info("ssl_object")
    shown = tls.getpeercert(binary_form=True) if tls is not None else None
    return ssl.DER_cert_to_PEM_cert(shown) if shown else ""


def showing(app: ASGIApp, certificate: str) -> ASGIApp:
    """The application told of the client's certificate, as ASGI's TLS extension has it."""

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("extensions", {})["tls"] = {"client_cert_chain": [certificate]}
        await app(scope, receive, send)

    return told


def refusal_response(refusal: Refusal) -> bytes:
    """A whole HTTP/1.1 response whose body both dialects' clients can read."""
    body = msgspec.json.encode(
        {
            "errors": [{"message": refusal.message, "code": refusal.number}],
            "success": False,
            "result": None,
            "messages": [],
            "error": {
                "message": refusal.message,
                "type": "invalid_request_error" if refusal.status < 500 else "server_error",
                "code": str(refusal.number),
                "param": None,
            },
        }
    )
    retry = "retry-after: 1\r\n" if refusal.status == 503 else ""
    head = (
        f"HTTP/1.1 {refusal.status} {STATUS_PHRASES[refusal.status].decode()}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"{retry}connection: close\r\n\r\n"
    )
    return head.encode() + body
