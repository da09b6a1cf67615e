"""One connection of a client over HTTP/1, bounded: every wait has a deadline, every size a limit.

    bytes ──▶ head (`head`) ──▶ Exchange ◀──▶ application
                └─▶ body (`http_body`) ──┘

It stands in for uvicorn's own protocols, which wait for ever for a header or a body and bound
neither (measured: a half-sent header stays open, 1 MiB of header and 20,000 fields are served), and
which spend more on a request than all of its streamed answer costs. uvicorn keeps the rest: the
sockets, the signals, the lifespan.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import msgspec
import uvicorn
from starlette.types import ASGIApp, Scope

from skerry.errors import InternalError
from skerry_edge.http.body import BodyRefused, ChunkedBody, SizedBody, body_of
from skerry_edge.http.exchange import Exchange
from skerry_edge.http.head import (
    BLANK_LINE,
    TOO_MANY_CONNECTIONS,
    TOO_SLOW_BODY,
    TOO_SLOW_HEADER,
    Head,
    Refusal,
    check_partial,
    read_head,
)
from skerry_edge.limits import Limits

TICK_SECONDS = 1.0  # how often an upload's pace is looked at
FAILED = Refusal(InternalError.status, InternalError.number, "Internal error.")

logger = logging.getLogger(__name__)


class GuardedProtocol(asyncio.Protocol):
    """One connection; slow or endless senders are refused with a short JSON body.

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
        self._app = cast(ASGIApp, config.loaded_app)
        self._asgi = {"version": config.asgi_version, "spec_version": "2.3"}
        self._server_state = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._limits = limits
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # until it is made
        self._scope: Scope = {}  # what is the same in each request
        self._unread = bytearray()  # of heads to come; the first one may be incomplete
        self._body: SizedBody | ChunkedBody | None = None  # that is on its way
        self._exchange: Exchange | None = None  # the last one
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._body_since = 0.0  # loop time at which the head was complete
        self._body_size = 0  # bytes of it so far
        self._is_writable = asyncio.Event()
        self._is_writable.set()
        self._is_refused = False
        self._is_last = False  # the exchange to come, or in progress

    # --- asyncio's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        connections: set[GuardedProtocol] = self._server_state.connections
        connections.add(self)
        self._scope = {
            "type": "http",
            "asgi": self._asgi,
            "server": _address(transport.get_extra_info("sockname")),
            "client": _address(transport.get_extra_info("peername")),
            "scheme": "http" if transport.get_extra_info("sslcontext") is None else "https",
            "root_path": "",
        }
        if certificate := client_certificate(transport):
            self._scope["extensions"] = {"tls": {"client_cert_chain": [certificate]}}
        if len(connections) > self._limits.max_connections:
            self._is_refused = True  # and not lingered over: these are not bounded otherwise
            self.write(refusal_response(TOO_MANY_CONNECTIONS))
            self._transport.close()
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        for timer in self._timers.values():
            timer.cancel()
        self._is_writable.set()
        if self._exchange is not None:
            self._exchange.cut_off()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return  # lingering: read and dropped, so that the refusal is not lost in a reset
        if self._body is not None:
            data = self._receive_body(self._body, data)
        if data and self._body is None:
            self._receive_head(data)

    def pause_writing(self) -> None:
        self._is_writable.clear()
        self._set_timer("write", self._limits.write_seconds, self._transport.abort)

    def resume_writing(self) -> None:
        self._is_writable.set()
        self._cancel_timer("write")

    # --- the exchange's

    @property
    def default_fields(self) -> list[tuple[bytes, bytes]]:
        """Of each answer."""
        fields: list[tuple[bytes, bytes]] = self._server_state.default_headers
        return fields

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def writable(self) -> None:
        """Return once the client has read enough of what was written, or is gone."""
        if not self._is_writable.is_set():
            await self._is_writable.wait()

    def resume_reading(self) -> None:
        """The body so far was read."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def answered(self) -> None:
        """The answer is out: the next request's turn, or the end."""
        self._server_state.total_requests += 1
        self.resume_reading()
        if self._exchange is not None and not self._exchange.keeps_alive:
            self._transport.close()
        elif self._body is None:
            self._expect_next()

    def give_up(self) -> None:
        """There will be no answer, or no more of it."""
        self._refuse(FAILED)

    # --- the server's

    def shutdown(self) -> None:
        """Close after the exchange in progress."""
        if self._is_answering is None:
            self._transport.close()
        else:
            self.finish()

    def finish(self) -> bool:
        """Close after the exchange in progress or to come, and say so in its answer; whether the
        client has none in progress."""
        self._is_last = True
        if (exchange := self._is_answering) is None:
            return not self._unread
        exchange.keeps_alive = False
        return False

    # --- reading

    @property
    def _is_answering(self) -> Exchange | None:
        """The exchange in progress."""
        exchange = self._exchange
        return None if exchange is None or exchange.is_complete else exchange

    def _receive_head(self, data: bytes) -> None:
        """Take in the next request's head, or what is ahead of its turn."""
        if exchange := self._is_answering:
            if exchange.keeps_alive and len(self._unread) + len(data) <= self._limits.header_bytes:
                self._unread += data
            else:
                exchange.keeps_alive = False
            return
        self._cancel_timer("idle")
        if "head" not in self._timers:
            self._expect_head()
        if not self._unread:
            data = data.lstrip(b"\r\n")  # RFC 9112, 2.2: empty lines before a request are ignored
        searched = max(0, len(self._unread) - len(BLANK_LINE) + 1)
        self._unread += data
        end = self._unread.find(BLANK_LINE, searched) + len(BLANK_LINE)
        if end < len(BLANK_LINE):
            if refusal := check_partial(bytes(self._unread), self._limits):
                self._refuse(refusal)
            return
        head = read_head(bytes(self._unread[:end]), self._limits)
        if isinstance(head, Refusal):
            self._refuse(head)
            return
        rest, self._unread = bytes(self._unread[end:]), bytearray()
        self._cancel_timer("head")
        self._begin(head)
        self.data_received(rest)

    def _begin(self, head: Head) -> None:
        """The application's turn; it reads the body as it comes."""
        path, _, query = head.target.partition(b"?")
        scope = {
            **self._scope,
            "http_version": head.version,
            "method": head.method,
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "headers": head.fields,
            "state": self._app_state.copy(),
        }
        exchange = self._exchange = Exchange(self, head, scope)
        exchange.keeps_alive = head.keeps_alive and not self._is_last
        if head.body_size == 0:
            exchange.take(b"", is_last=True)
        else:
            self._body = body_of(head.body_size, self._limits.body_limit(head.target))
            self._body_since, self._body_size = self._loop.time(), 0
            self._set_timer("body", TICK_SECONDS, self._check_pace)
        task = self._loop.create_task(exchange.run(self._app))
        self._server_state.tasks.add(task)
        task.add_done_callback(self._server_state.tasks.discard)

    def _receive_body(self, body: SizedBody | ChunkedBody, data: bytes) -> bytes:
        """Take in some of the body; gives what lies behind its end."""
        exchange = self._exchange
        if exchange is None:
            raise RuntimeError("a body without a request")
        try:
            part, rest = body.take(data)
        except BodyRefused as refused:
            self._refuse(refused.refusal)
            return b""
        self._body_size += len(part)
        if exchange.take(part, is_last=body.is_whole):
            self._transport.pause_reading()
        if body.is_whole:
            self._body = None
            self._cancel_timer("body")
            if exchange.is_complete:
                self._expect_next()
        return rest

    def _expect_next(self) -> None:
        """The exchange is over. What came ahead begins the next one."""
        self._set_timer("idle", self._limits.idle_seconds, self._transport.close)
        if self._unread:
            ahead, self._unread = bytes(self._unread), bytearray()
            self._receive_head(ahead)

    # --- deadlines

    def _set_timer(self, name: str, seconds: float, act: Any) -> None:
        self._cancel_timer(name)
        self._timers[name] = self._loop.call_later(seconds, act)

    def _cancel_timer(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    def _expect_head(self) -> None:
        self._set_timer("head", self._limits.header_seconds, lambda: self._refuse(TOO_SLOW_HEADER))

    def _check_pace(self) -> None:
        elapsed = self._loop.time() - self._body_since
        limits = self._limits
        slow = self._body_size < limits.body_bytes_per_second * elapsed
        if elapsed > limits.body_seconds or (slow and elapsed > limits.body_grace_seconds):
            self._refuse(TOO_SLOW_BODY)
        else:
            self._set_timer("body", TICK_SECONDS, self._check_pace)

    # --- refusals

    def _refuse(self, refusal: Refusal) -> None:
        """Answer if nothing was answered yet, then close, giving the client time to read it."""
        if self._is_refused or self._transport.is_closing():
            return
        self._is_refused = True
        for name in ("head", "body"):
            self._cancel_timer(name)
        logger.info("refused a connection: %d %s", refusal.status, refusal.message)
        if exchange := self._is_answering:
            exchange.cut_off()  # the application is told, and can no longer answer
            if exchange.has_begun:
                self._transport.abort()
                return
        self._transport.resume_reading()
        if exchange or self._body is None:  # else the answer is out, and only its request lags
            self.write(refusal_response(refusal))
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(self._limits.linger_seconds, self._transport.abort)


def _address(name: Any) -> tuple[str, int] | None:
    """Host and port of a socket of the Internet."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None


def client_certificate(transport: asyncio.BaseTransport) -> str:
    """As PEM, proven by the handshake; empty where none was asked for or shown."""
    tls = transport.get_extra_info("ssl_object")
    shown = tls.getpeercert(binary_form=True) if tls is not None else None
    return ssl.DER_cert_to_PEM_cert(shown) if shown else ""


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
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"{retry}connection: close\r\n\r\n"
    )
    return head.encode() + body
