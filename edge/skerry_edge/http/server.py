"""The listening side: uvicorn on uvloop, which drains at its end, or leaves to a successor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable, Generator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from skerry_edge.http.connection import GuardedProtocol
from skerry_edge.http.connections import ConnectionTable
from skerry_edge.http.listener import MAX_WAITING, Listener
from skerry_edge.limits import Limits

SPARE_FILES = 256  # descriptors for everything that is not a client

logger = logging.getLogger(__name__)


class EdgeServer(uvicorn.Server):
    """uvicorn's server, which says when it listens, and can leave to a successor."""

    def __init__(
        self,
        config: uvicorn.Config,
        limits: Limits,
        table: ConnectionTable,
        ready: Callable[[], None],
        linger: Callable[[], Awaitable[None]] | None = None,
        tls: ssl.SSLContext | None = None,
        *,
        heeds_signals: bool = True,
    ) -> None:
        super().__init__(config)
        self._heeds_signals = heeds_signals
        self._limits = limits
        self._table = table
        self._ready = ready
        self._linger = linger
        self._tls = tls
        self._listeners: list[Listener] = []
        self._lingering: asyncio.Task[None] | None = None
        self._is_told = False  # by a signal
        self._is_retiring = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup([])
        self._listeners = [self._listen(each) for each in sockets or []]
        if not self.started:
            return
        try:
            self._ready()
        except BaseException:
            await self.shutdown(sockets)  # else the application ends as if it had crashed
            raise

    def _listen(self, listener: socket.socket) -> Listener:
        listener.listen(_backlog(self._limits))  # who has made it may not, before we are ready
        return Listener(
            listener,
            lambda handshake: GuardedProtocol(
                self.config, self.server_state, self.lifespan.state,
                limits=self._limits, table=self._table, handshake=handshake,
            ),
            table=self._table,
            tls=self._tls,
            seconds=self._limits.header_seconds,
        )  # fmt: skip

    def stop(self) -> None:
        """Linger, drain and end; one that retires hurries from now on."""
        if self._linger is not None and not self._is_retiring:
            if self._lingering is None:
                self._lingering = asyncio.ensure_future(self._stop_after(self._linger))
            return
        self.should_exit = True
        if self._is_retiring:
            self._loop.call_later(self._limits.drain_seconds, self._cancel_streams)

    async def _stop_after(self, linger: Callable[[], Awaitable[None]]) -> None:
        try:
            await linger()
        finally:
            self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        if not self._heeds_signals:
            yield
            return
        with super().capture_signals():
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._linger is not None and not self._is_told and not self._is_retiring:
            self._is_told = True  # a second signal ends the lingering
            self._loop.call_soon_threadsafe(self.stop)  # we may be anywhere
            return
        super().handle_exit(sig, frame)
        if self._is_retiring:
            self._loop.call_soon_threadsafe(self.stop)  # we may be anywhere

    def _cancel_streams(self) -> None:
        for task in self.server_state.tasks:
            task.cancel()

    def retire(self) -> None:
        """Finish what runs, however long it takes: a successor accepts at the same socket."""
        self._is_retiring = True
        self.should_exit = True
        if self.started:  # now: uvicorn looks at `should_exit` only ten times a second
            self._leave_socket()
            self._finish_connections()

    def _leave_socket(self) -> None:
        for listener in self._listeners:
            listener.leave()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._leave_socket()
        for listener in self._listeners:
            await listener.close(self._limits.retire_seconds if self._is_retiring else 0.0)
        if self._is_retiring:
            self.config.timeout_graceful_shutdown = math.ceil(self._limits.request_seconds)
            self._finish_connections()  # those that were accepted last, too
        await super().shutdown(sockets)

    def _finish_connections(self) -> None:
        """Have each connection take one request more at most: closing an idle one at once would
        lose the request that is on its way."""
        for each in self.server_state.connections:
            if isinstance(each, GuardedProtocol):
                each.finish(self._limits.retire_seconds)


def allow_connections(number: int) -> None:
    """Let this process open that many sockets beside its files, as far as the system allows."""
    wanted = number + MAX_WAITING + SPARE_FILES
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
    return socket.create_server(address[:2], family=family, backlog=_backlog(limits))


def _backlog(limits: Limits) -> int:
    """Return how many connections wait to be accepted."""
    return min(limits.max_connections, 2048)


async def serve(
    app: ASGIApp,
    *,
    listener: socket.socket,
    limits: Limits,
    ready: Callable[[], None],
    stop: asyncio.Event | None = None,
    retire: asyncio.Event | None = None,
    ssl_context: ssl.SSLContext | None = None,
    linger: Callable[[], Awaitable[None]] | None = None,
    heeds_signals: bool = True,
) -> None:
    """Serve `app` until SIGTERM, SIGINT or `stop`, then drain.

    The `listener`, made by `listen`, is closed at the end.
    Draining: no new connections, idle ones are closed, streams may finish within
    `limits.drain_seconds`, then they are cancelled. After `retire`, which says that a successor
    accepts at the same socket, they may finish however long they take (unless it is stopped as
    well), and idle connections are closed after one more answer. Requests are taken until `linger`
    returns, which is called when it is to stop. `ready` is called once connections are accepted.
    Signals are handled only on the main thread, and if it `heeds_signals`; a second one ends the
    lingering, a second SIGINT the drain. Meant for uvloop: `uvloop.run(serve(…))`.
    """
    allow_connections(limits.max_connections + limits.reserved_connections)
    table = ConnectionTable(limits.max_connections, limits.reserved_connections)
    config = uvicorn.Config(
        app,
        http=GuardedProtocol,  # which our listeners make: none of uvicorn's is loaded
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=limits.drain_seconds,
    )
    server = EdgeServer(
        config,
        limits,
        table,
        ready,
        linger,
        ssl_context,
        heeds_signals=heeds_signals,
    )
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
