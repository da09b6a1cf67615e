"""Where a machine serves stages: it has nodes prove themselves, and starts a process for each rank.

It holds no model, and reads nothing of what a rank is ordered to do.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import select
import subprocess
import threading
from collections.abc import Callable
from typing import cast

from skerry_regions.address import Address
from skerry_regions.node.ranks.stages import answer
from skerry_regions.process.startup import from_threads
from skerry_regions.wire.link_auth import LinkCredentials, LinkListener, listen

LOOK_SECONDS = 0.2  # between looks at a rank whose connection is open
END_SECONDS = 5.0  # that a rank has once its connection is closed
ROOM_SECONDS = 1.0  # until a second look, where there is no room: a rank may just have ended

logger = logging.getLogger(__name__)


class StageServer:
    """Serves so many ranks at once. Create it on the event loop that it is to use."""

    def __init__(self, command: Callable[[int], list[str]], *, most: int) -> None:
        """`command` is the command line of a rank, by the descriptor of its connection."""
        self._command = command
        self._most = most
        self.ranks = dict[int, subprocess.Popen[bytes]]()  # that are served now, by pid
        self._threads = set[threading.Thread]()
        self._listener: LinkListener | None = None

    async def listen(self, address: Address, credentials: LinkCredentials) -> Address:
        """Serve until `close`; return where. Raises OSError, of which LinkRefused is one, and
        AddressError."""
        self._listener, bound = await listen(
            address, lambda: _Arrival(self._arrived), credentials, "ranks"
        )
        return bound

    async def close(self) -> None:
        """End all ranks: the engines of their nodes stop."""
        if self._listener is not None:
            self._listener.close()
        for process in self.ranks.values():
            process.kill()
        for thread in list(self._threads):
            await asyncio.to_thread(thread.join)

    def _arrived(self, transport: asyncio.Transport, *, again: bool = False) -> None:
        """Start a rank with a connection whose other end is a node's, or refuse to."""
        connected = transport.get_extra_info("socket")
        if connected is None or transport.is_closing():
            return
        if len(self.ranks) >= self._most:
            if not again:
                look = functools.partial(self._arrived, transport, again=True)
                asyncio.get_running_loop().call_later(ROOM_SECONDS, look)
                return
            transport.write(answer(f"{self._most} ranks are served there, as many as may be"))
            transport.close()
            return
        connection = os.dup(connected.fileno())
        try:
            process = subprocess.Popen(
                self._command(connection),
                stdin=subprocess.DEVNULL,
                pass_fds=[connection],
                start_new_session=True,
            )
        except OSError as error:
            os.close(connection)
            logger.exception("a rank does not start")
            transport.write(answer(f"its process does not start: {error.strerror}"))
            transport.close()
            return
        peer = transport.get_extra_info("peername")
        logger.info("a rank for %s runs as process %d", peer[0] if peer else "?", process.pid)
        self.ranks[process.pid] = process
        forget = from_threads(lambda: self._forget(process.pid, attending))
        attending = threading.Thread(target=_attend, args=(process, connection, forget))
        self._threads.add(attending)
        attending.start()
        transport.write(answer())
        transport.close()  # nothing more is read here: what comes is the rank's

    def _forget(self, pid: int, attending: threading.Thread) -> None:
        self.ranks.pop(pid, None)
        self._threads.discard(attending)


class _Arrival(asyncio.Protocol):
    """A connection whose other end has proven itself."""

    def __init__(self, arrived: Callable[[asyncio.Transport], None]) -> None:
        self._arrived = arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._arrived(cast(asyncio.Transport, transport))  # uvloop's is none by inheritance


def _attend(process: subprocess.Popen[bytes], connection: int, forget: Callable[[], None]) -> None:
    """Wait for a rank's end; bring it about where its connection is closed and it stays: it may be
    stopped."""
    ends = select.poll()
    ends.register(connection, select.POLLRDHUP)
    while process.poll() is None and not ends.poll(1000 * LOOK_SECONDS):
        pass
    os.close(connection)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    logger.info("the rank of process %d has ended, status %d", process.pid, process.returncode)
    forget()
