"""A real server on a free port of loopback, for tests that need sockets."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import uvloop
from starlette.types import ASGIApp, Receive, Send
from tests.edge.loop_meter import METER

from skerry_edge.http.server import listen, serve
from skerry_edge.limits import Limits


class Running:
    """What the serving thread tells the others; `ready` is set when it listens or has failed."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.port = 0
        self.failure: BaseException | None = None
        self.stop: Callable[[], None] = lambda: None

    def serve(self, app: ASGIApp, limits: Limits, ssl_context: ssl.SSLContext | None) -> None:
        try:
            uvloop.run(self._serve(app, limits, ssl_context))
        except BaseException as exc:
            self.failure = exc
        finally:
            self.ready.set()

    async def _serve(
        self, app: ASGIApp, limits: Limits, ssl_context: ssl.SSLContext | None
    ) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        METER.watch(loop)
        self.stop = lambda: void(loop.call_soon_threadsafe(stop.set))
        listener = listen("127.0.0.1", 0, limits)
        self.port = listener.getsockname()[1]
        await serve(
            app,
            listener=listener,
            limits=limits,
            ready=self.ready.set,
            stop=stop,
            ssl_context=ssl_context,
        )


def void(_: object) -> None:
    """Nothing: for callbacks whose result nobody wants."""


@contextmanager
def serving(
    app: ASGIApp, limits: Limits, *, ssl_context: ssl.SSLContext | None = None
) -> Generator[int]:
    """Serve `app` on a thread with a loop of its own; gives the port, drains at the end."""
    running = Running()
    thread = threading.Thread(target=running.serve, args=(app, limits, ssl_context), name="edge")
    thread.start()
    running.ready.wait()
    try:
        if running.failure is None:
            yield running.port
    finally:
        if running.failure is None:
            running.stop()
        thread.join()
    if running.failure is not None:
        raise running.failure


async def live_through(receive: Receive, send: Send) -> None:
    """Say to a server's start and to its end that they are complete."""
    for _ in range(2):
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
