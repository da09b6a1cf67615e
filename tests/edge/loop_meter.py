"""How much processor time an edge's event loop gives to one callback: requests must not hold it.

Nothing whose cost grows with the request runs on the loop before admission. Every task's steps and
every connection's callbacks are timed by the loop thread's own clock (`time.thread_time`), which
other work of the machine does not move; what the garbage collector took of it does not count.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any

MAX_SECONDS = 0.05  # of processor time, of one callback

STEP = ("data_received", "eof_received", "connection_made", "connection_lost")


@dataclass
class LoopMeter:
    """The dearest callbacks of all served loops since it was last read."""

    worst: float = 0.0  # seconds
    what: str = ""
    _collecting: threading.local = field(default_factory=threading.local)

    def __post_init__(self) -> None:
        gc.callbacks.append(self._collected)

    def read(self) -> tuple[float, str]:
        """Return the worst so far and what it was, and begin again."""
        found = self.worst, self.what
        self.worst, self.what = 0.0, ""
        return found

    def timed(self, name: str, call: Callable[..., Any], *args: Any) -> Any:
        """Call it, and note what it took."""
        collected, began = self._gc_seconds, time.thread_time()
        try:
            return call(*args)
        finally:
            took = time.thread_time() - began - (self._gc_seconds - collected)
            if took > self.worst:
                self.worst, self.what = took, name

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Time the steps of every task that this loop makes from now on."""

        def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
            return asyncio.Task(_Timed(coroutine, self), loop=loop, **more)

        loop.set_task_factory(make)

    def timing(self, protocol: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
        """Return a protocol whose callbacks are timed."""
        methods = {
            name: _timing(self, f"{protocol.__name__}.{name}", getattr(protocol, name))
            for name in STEP
        }
        return type(protocol.__name__, (protocol,), methods)

    @property
    def _gc_seconds(self) -> float:
        return getattr(self._collecting, "seconds", 0.0)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        local, now = self._collecting, time.thread_time()
        if phase == "start":
            local.began = now
        else:
            local.seconds = self._gc_seconds + now - getattr(local, "began", now)


class _Timed(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are timed."""

    def __init__(self, inner: Coroutine[Any, Any, Any], meter: LoopMeter) -> None:
        self._inner = inner
        self._meter = meter
        self.__name__ = getattr(inner, "__qualname__", repr(inner))

    def send(self, value: Any) -> Any:
        return self._meter.timed(self.__name__, self._inner.send, value)

    def throw(self, *error: Any) -> Any:
        return self._meter.timed(self.__name__, self._inner.throw, *error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise TypeError("a task steps it")


def _timing(meter: LoopMeter, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def timed(self: Any, *args: Any) -> Any:
        return meter.timed(name, method, self, *args)

    return timed


METER = LoopMeter()
