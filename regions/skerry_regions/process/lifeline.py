"""Between a supervisor and a process of its: one socket that carries progress, and either one's
end.

The process writes JSON lines: `{"what", "share"}` while it starts, with `"size"` where bytes are
counted, then `{"ready": {…}}` once. The supervisor writes nothing; when its end closes, however it
died, a process that cannot be found again ends; the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

import orjson


class Lifeline:
    """The process's end. `progress` and `ready` may be called from any thread.

    A process that outlives whoever waits for it does not `watch`: what it says later is lost.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)  # our own children must not keep it open
        self._last: tuple[str, int] = ("", 0)
        self._lock = threading.Lock()

    def watch(self, gone: Callable[[], None]) -> None:
        """Call `gone`, on the running loop, when the supervisor is no more."""
        loop = asyncio.get_running_loop()

        def readable() -> None:
            try:
                is_there = bool(self._socket.recv(64))
            except OSError:  # its end was closed with something of ours unread
                is_there = False
            if not is_there:
                loop.remove_reader(self._socket)
                gone()

        loop.add_reader(self._socket, readable)

    def progress(self, what: str, share: float) -> None:
        """Report that `share` of `what` is done, 0 to 1. Whole percents are sent."""
        step = (what, int(share * 100))
        with self._lock:
            if step != self._last:
                self._last = step
                size = getattr(what, "size", 0)  # bytes, where there are some (`Sized`)
                self._write({"what": what, "share": share} | ({"size": size} if size else {}))

    def ready(self, report: dict[str, Any]) -> None:
        with self._lock:
            self._write({"ready": report})

    def close(self) -> None:
        self._socket.close()

    def _write(self, line: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone
            self._socket.sendall(orjson.dumps(line) + b"\n")


async def reports(lifeline: socket.socket) -> AsyncGenerator[dict[str, Any]]:
    """Yield what a process writes, at its supervisor's end, until it ends. Closes the socket."""
    reader, writer = await asyncio.open_connection(sock=lifeline)
    try:
        with contextlib.suppress(ConnectionError):
            async for line in reader:
                yield orjson.loads(line)
    finally:
        writer.close()
