"""The listening side: uvicorn on uvloop, with a protocol that bounds every connection.

uvicorn by itself waits for ever for a header or a body and bounds neither (measured: a half-sent
header stays open, 1 MiB of header and 20,000 fields are served). `GuardedProtocol` adds the missing
deadlines and sizes around uvicorn's own h11 protocol, and refuses with a short JSON body.

h11 was chosen by measurement: sending one streamed piece costs it 2.6 µs, reading a typical request
51 µs; the parser's strictness is worth more than what a C parser would save.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Any

import h11
import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

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

SPARE_FILES = 256  # descriptors for everything that is not a client
TICK_SECONDS = 1.0  # how often an upload's pace is looked at
RETIRE_TICK_SECONDS = 0.05

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
            self.cycle.keep_alive = False
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
        cycle.keep_alive = False
        return False

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


class EdgeServer(uvicorn.Server):
    """uvicorn's server, which says when it listens, and can leave to a successor."""

    def __init__(self, config: uvicorn.Config, limits: Limits, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._limits = limits
        self._ready = ready
        self._is_retiring = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    def stop(self) -> None:
        self.should_exit = True

    def retire(self) -> None:
        """A successor accepts at the same socket: finish what runs, however long it takes."""
        self._is_retiring = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._is_retiring:
            self.config.timeout_graceful_shutdown = math.ceil(self._limits.request_seconds)
            for server in self.servers:
                server.close()
            await self._let_clients_go()
        await super().shutdown(sockets)

    async def _let_clients_go(self) -> None:
        """Answer what idle connections still send, and tell them that it is the last: closing one
        at once would lose the request that is on its way."""
        for _ in range(math.ceil(self._limits.retire_seconds / RETIRE_TICK_SECONDS)):
            if not self._num_idle():
                return
            await asyncio.sleep(RETIRE_TICK_SECONDS)

    def _num_idle(self) -> int:
        connections = [
            each for each in self.server_state.connections if isinstance(each, GuardedProtocol)
        ]
        return sum(each.finish() for each in connections)


def allow_connections(number: int) -> None:
    """Let this process open that many sockets beside its files, as far as the system allows."""
    wanted = number + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < wanted:
            logger.warning("only %d of %d connections: raise ulimit -n", allowed, number)


def listen(host: str, port: int, limits: Limits) -> socket.socket:
    """Bind and listen; port 0 takes a free one. Raises OSError if that is not possible."""
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return socket.create_server(
        address[:2], family=family, backlog=min(limits.max_connections, 2048)
    )


async def serve(
    app: ASGIApp,
    *,
    host: str = "127.0.0.1",
    port: int = 8787,
    listener: socket.socket | None = None,
    limits: Limits,
    ready: Callable[[str, int], None] = lambda host, port: None,
    stop: asyncio.Event | None = None,
    retire: asyncio.Event | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> None:
    """Serve `app` until SIGTERM, SIGINT or `stop`, then drain. Raises OSError if it cannot listen.

    A `listener` made by `listen` stands in place of `host` and `port`; it is closed at the end.
    Draining: no new connections, idle ones are closed, streams may finish within
    `limits.drain_seconds`, then they are cancelled. After `retire`, which says that a successor
    accepts at the same socket, they may finish however long they take, and idle connections are
    closed after one more answer. `ready(host, port)` is called once connections
    are accepted, with the port really taken (`port` 0 asks for a free one). Signals are handled
    only on the main thread; a second SIGINT ends the drain. Meant for uvloop:
    `uvloop.run(serve(…))`.
    """
    allow_connections(limits.max_connections)
    if listener is None:
        listener = listen(host, port, limits)
    address = listener.getsockname()
    config = uvicorn.Config(
        app,
        http=functools.partial(GuardedProtocol, limits=limits),  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=limits.drain_seconds,
        ssl_context_factory=None if ssl_context is None else (lambda config, default: ssl_context),
    )
    server = EdgeServer(config, limits, lambda: ready(address[0], address[1]))
    waiting = [
        asyncio.create_task(_when(event, act))
        for event, act in ((stop, server.stop), (retire, server.retire))
        if event is not None
    ]
    try:
        await server.serve([listener])
    finally:
        for task in waiting:
            task.cancel()


async def _when(event: asyncio.Event, act: Callable[[], None]) -> None:
    await event.wait()
    act()
