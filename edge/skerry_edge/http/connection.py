"""One connection of a client over HTTP/1, bounded: every wait has a deadline, every size a limit.

    bytes ──▶ `head` ──▶ `exchange` ◀──▶ application
                └─▶ `body` ─┘

It stands in for uvicorn's own protocols, which wait for ever for a header or a body and bound
neither (measured: 1 MiB of header and 20,000 fields are served), and which spend more on a request
than all of its streamed answer costs. uvicorn keeps the sockets, the signals, the lifespan.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Scope

from skerry_edge.http.body import BodyRefused, Tunnel, Upload
from skerry_edge.http.connections import ConnectionTable, Holder, network_of
from skerry_edge.http.exchange import Exchange, connection_scope, request_scope
from skerry_edge.http.head import Head, HeadReader
from skerry_edge.http.refusal import (
    CLOSED_IDLE,
    FAILED,
    TOO_MANY_CONNECTIONS,
    TOO_SLOW_BODY,
    TOO_SLOW_HEADER,
    Refusal,
    refusal_response,
)
from skerry_edge.http.timers import Timers
from skerry_edge.limits import Limits

TICK_SECONDS = 1.0  # how often one looks at an upload's pace, and for a client
PROBES = (b"/healthz", b"/readyz")  # served in the places that are left for them

logger = logging.getLogger(__name__)


class GuardedProtocol(asyncio.Protocol):
    """One connection; slow or endless senders are refused with a short JSON body.

    What a client sends ahead of an answer waits its turn, up to `header_bytes`; the rest is dropped
    and the connection closed after the answer (RFC 9112, 9.3.2).
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: Any,
        app_state: dict[str, Any],
        *,
        limits: Limits,
        table: ConnectionTable,
        handshake: Holder | None,
    ) -> None:
        """`handshake` had the place until now."""
        self._app = cast(ASGIApp, config.loaded_app)
        self._asgi = {"version": config.asgi_version, "spec_version": "2.3"}
        self._server_state = server_state
        self._app_state = app_state
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._table = table
        self._handshake = handshake
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # until it is made
        self._scope: Scope = {}  # what is the same in each request
        self._heads = HeadReader(limits)
        self._body: Upload | Tunnel | None = None  # that is on its way
        self._exchange: Exchange | None = None  # the last one
        self._timers = Timers(self._loop)
        self._is_writable = asyncio.Event()
        self._is_writable.set()
        self._is_refused = self._is_finishing = False
        self._idle_seconds: float = limits.idle_seconds
        self._is_last = False  # the exchange to come, or in progress
        self._is_probe = False  # its place is for a probe of health, and one request
        self._is_half_closed = False  # the client sends no more, and may still read

    # --- asyncio's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._server_state.connections.add(self)
        self._scope = connection_scope(transport, self._asgi)
        if self._handshake is not None:
            self._table.release(self._handshake)
        place = self._table.admit(self, network_of(self._scope["client"]))
        self._is_probe = self._is_last = place == "probe"
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        self._table.release(self)
        self._timers.cancel_all()
        self._is_writable.set()
        if self._exchange is not None:
            self._exchange.cut_off()
            self._exchange = None  # which has this connection

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return  # lingering: read and dropped, so that the refusal is not lost in a reset
        if self._body is not None:
            data = self._receive_body(self._body, data)
        if data and self._body is None:
            self._receive_head(data)

    def eof_received(self) -> bool:
        """Return whether the connection stays open: the client may still wait for an answer."""
        exchange = self._is_answering
        if self._is_refused or exchange is None or self._body is not None:
            return False  # nothing that came is whole
        self._is_half_closed = True
        self._look_for_client()
        return True

    def pause_writing(self) -> None:
        self._is_writable.clear()
        self._timers.set("write", self._limits.write_seconds, self._transport.abort)

    def resume_writing(self) -> None:
        self._is_writable.set()
        self._timers.cancel("write")

    # --- the exchange's

    @property
    def default_fields(self) -> list[tuple[bytes, bytes]]:
        """Return the fields of each answer."""
        return cast(list[tuple[bytes, bytes]], self._server_state.default_headers)

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def writable(self) -> None:
        """Return once the client has read enough of what was written, or is gone."""
        if not self._is_writable.is_set():
            await self._is_writable.wait()

    def resume_reading(self) -> None:
        """Read on: the body so far was read."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def answered(self) -> None:
        """Go on to the next request, or close: the answer is out."""
        self._server_state.total_requests += 1
        self.resume_reading()
        if self._exchange is not None and not self._exchange.keeps_alive:
            self._transport.close()
        elif self._body is None:
            self._expect_next()

    def tunnel(self) -> None:
        """Hand on all that comes, what came ahead first: it is of another protocol."""
        self._body = Tunnel()
        self.data_received(self._heads.take_all())

    def fail(self) -> None:
        """Refuse: there will be no answer, or no more of it."""
        self._refuse(FAILED)

    def give_up(self) -> None:
        """Close an idle connection at once: another one has its place."""
        self._is_refused = True
        self.write(refusal_response(CLOSED_IDLE))
        self._transport.close()

    def shutdown(self) -> None:
        """Close after the exchange in progress; one that finishes closes by itself."""
        if not self._is_finishing:
            self.finish(0.0)
            if exchange := self._is_answering:
                exchange.keeps_alive = False

    def finish(self, seconds: float) -> None:
        """Close after one answer that says so, or when no request comes for `seconds`."""
        self._is_finishing = self._is_last = True
        self._idle_seconds = seconds
        if (exchange := self._is_answering) is not None:
            exchange.finish()
        elif self._heads.is_empty and self._body is None:
            self._timers.set("idle", seconds, self._close_idle)

    # --- reading

    @property
    def _is_answering(self) -> Exchange | None:
        """Return the exchange in progress."""
        exchange = self._exchange
        return None if exchange is None or exchange.is_complete else exchange

    def _receive_head(self, data: bytes) -> None:
        """Take in the next request's head, or what is ahead of its turn."""
        if exchange := self._is_answering:
            exchange.keeps_alive = exchange.keeps_alive and self._heads.keep(data)
            return
        self._timers.cancel("idle")
        if "head" not in self._timers:
            self._expect_head()
        if (found := self._heads.read(data)) is None:
            if self._is_half_closed:
                self._transport.close()  # the rest does not come
            return
        head, rest = found
        if isinstance(head, Refusal):
            self._refuse(head)
        elif self._is_probe and head.target.partition(b"?")[0] not in PROBES:
            self._refuse(TOO_MANY_CONNECTIONS)
        else:
            self._timers.cancel("head")
            self._begin(head)
            self.data_received(rest)
            if self._is_half_closed and self._body is not None:
                self._transport.close()  # likewise

    def _begin(self, head: Head) -> None:
        """Let the application answer; it reads the body as it comes."""
        scope = request_scope(self._scope, head, self._app_state)
        exchange = self._exchange = Exchange(self, head, scope)
        exchange.keeps_alive = head.keeps_alive and not self._is_last
        if head.body_size == 0:
            exchange.take(b"", is_last=True)
            self._table.work(self)
        else:
            self._table.receive(self)
            self._body = Upload(head.body_size, head.target, self._limits, self._loop.time())
            self._timers.set("body", TICK_SECONDS, self._check_pace)
        task = self._loop.create_task(exchange.run(self._app))
        self._server_state.tasks.add(task)
        task.add_done_callback(self._server_state.tasks.discard)

    def _receive_body(self, body: Upload | Tunnel, data: bytes) -> bytes:
        """Take in some of the body; gives what lies behind its end."""
        if (exchange := self._exchange) is None:
            raise RuntimeError("a body without a request")
        try:
            part, rest = body.take(data)
        except BodyRefused as refused:
            self._refuse(refused.refusal)
            return b""
        if exchange.take(part, is_last=body.is_whole):
            self._transport.pause_reading()
        if body.is_whole:
            self._body = None
            self._timers.cancel("body")
            self._table.work(self)
            if exchange.is_complete:
                self._expect_next()
        return rest

    def _expect_next(self) -> None:
        """Wait for the next request; what came ahead begins it."""
        self._table.wait(self)
        self._timers.set("idle", self._idle_seconds, self._close_idle)
        if not self._heads.is_empty:
            self._receive_head(self._heads.take_all())
        elif self._is_half_closed:
            self._transport.close()

    def _look_for_client(self) -> None:
        """Write what clients skip (RFC 9110, 15.2): the system of one that is gone objects."""
        if (exchange := self._is_answering) is not None:
            exchange.write_interim()
            self._timers.set("client", TICK_SECONDS, self._look_for_client)

    def _close_idle(self) -> None:
        self._refuse(CLOSED_IDLE)  # a request that is on its way may be repeated

    def _expect_head(self) -> None:
        self._timers.set("head", self._limits.header_seconds, lambda: self._refuse(TOO_SLOW_HEADER))

    def _check_pace(self) -> None:
        if self._body is not None and self._body.is_too_slow(self._loop.time()):
            self._refuse(TOO_SLOW_BODY)
        else:
            self._timers.set("body", TICK_SECONDS, self._check_pace)

    def _refuse(self, refusal: Refusal) -> None:
        """Answer if nothing was answered yet, then close, giving the client time to read it."""
        if self._is_refused or self._transport.is_closing():
            return
        self._is_refused = True
        self._table.release(self)
        self._timers.cancel("head", "body", "idle")
        logger.info("refused a connection: %d %s", refusal.status, refusal.message)
        if exchange := self._is_answering:
            exchange.cut_off()  # the application sees it, and can no longer answer
            if exchange.has_begun:
                self._transport.abort()
                return
        self._transport.resume_reading()
        if exchange or self._body is None:  # else the answer is out, and only its request lags
            self.write(refusal_response(refusal))
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(self._limits.linger_seconds, self._transport.abort)
