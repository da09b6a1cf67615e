"""A process that loads on a thread while its event loop stays awake, and may be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")


class Interrupted(Exception):
    """It was stopped before it was ready."""


def stop_on_signals(heard: Callable[[], None] = lambda: None) -> asyncio.Event:
    """Set on SIGINT and SIGTERM; `heard` is called before. Call it on the main thread's loop."""
    stop = asyncio.Event()

    def told() -> None:
        heard()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told)
    return stop


def on_sighup(act: Callable[[], None]) -> None:
    """Call `act` on SIGHUP, but end as by SIGTERM when it says that the terminal is gone.

    Call it on the main thread's event loop.
    """
    had_terminal = os.isatty(0)

    def heard() -> None:
        if had_terminal and not os.isatty(0):
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            act()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, heard)


def from_threads(call: Callable[[], None]) -> Callable[[], None]:
    """Return `call` for other threads: done soon on this event loop, or never once it has ended."""
    loop = asyncio.get_running_loop()

    def soon() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(call)

    return soon


def on_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Return the result of `work`, done on a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast(T, result))

    def run() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = (work(), None)
        except BaseException as error:
            outcome = (None, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: none waits any more
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="skerry-loading", daemon=True).start()
    return future


async def unless(stop: asyncio.Event, future: asyncio.Future[T]) -> T:
    """Return the future's result; raises `Interrupted` when `stop` is set before."""
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((future, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise Interrupted
        return future.result()
    finally:
        stopping.cancel()
