"""A real server on a free port of loopback, for tests that need sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop
from starlette.types import ASGIApp

from skerry_edge.limits import Limits
from skerry_edge.server import serve


@contextmanager
def serving(app: ASGIApp, limits: Limits) -> Iterator[int]:
    """Serve `app` on a thread with a loop of its own; gives the port, drains at the end."""
    ready = threading.Event()
    port = 0
    failure: BaseException | None = None
    stop: asyncio.Event
    loop: asyncio.AbstractEventLoop

    def is_ready(_host: str, taken: int) -> None:
        nonlocal port
        port = taken
        ready.set()

    async def main() -> None:
        nonlocal stop, loop
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        await serve(app, port=0, limits=limits, ready=is_ready, stop=stop)

    def run() -> None:
        nonlocal failure
        try:
            uvloop.run(main())
        except BaseException as exc:
            failure = exc
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="edge")
    thread.start()
    ready.wait()
    try:
        if failure is not None:
            raise failure
        yield port
    finally:
        if failure is None:
            loop.call_soon_threadsafe(stop.set)
        thread.join()
    if failure is not None:
        raise failure
