"""UDP sockets that share a port, one worker each, and the way to the slow path.

Workers are threads: what they run is compiled and holds no GIL. They see another table within the
receive timeout when nothing comes, and with the next datagram otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from skerry_dns.fast.compiled import Int64s
from skerry_dns.fast.limiting import FastLimits
from skerry_dns.fast.responding import INET, PACKET, SOCKADDR, Keys, make_scratch
from skerry_dns.fast.serving import (
    GENERATION,
    SLOT,
    STOP,
    Sockets,
    make_batch,
    serve,
)
from skerry_dns.fast.table import Table, empty_table
from skerry_dns.server.datagrams import bound

TIMEOUT = struct.pack("@qq", 0, 250_000)  # `struct timeval` of a quarter second
RECEIVE_BUFFER = 4 << 20  # bytes; the kernel gives what it allows
SLOW_BUFFER = 256 << 10  # bytes of queries that wait for the event loop
SLOW_AT_ONCE = 32  # of them answered before the loop turns to others

Answer = Callable[[bytes, str], "bytes | None"]  # query and sender's address → answer

logger = logging.getLogger(__name__)


class Workers:
    """All workers of one address."""

    def __init__(
        self,
        host: Any,
        family: int,
        count: int,
        *,
        secret: bytes,
        limits: FastLimits,
        answer: Answer,
    ) -> None:
        """`host` is a socket's name of this family. `answer` is called on the event loop for what
        workers leave. Raises OSError."""
        self._answer = answer
        self._control: Int64s = np.zeros(2, np.int64)
        self._table = empty_table()
        self._threads: list[threading.Thread] = []
        self._loop = asyncio.get_running_loop()
        self._slow, self._from_workers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._slow.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SLOW_BUFFER)
        self._from_workers.setblocking(False)
        self._sockets: list[socket.socket] = []
        self.scratches = [make_scratch() for _ in range(count)]
        try:
            for _ in range(count):
                udp = bound(host, family, is_shared=True)
                self._sockets.append(udp)
                udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
                udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
        except OSError:
            self._close_sockets()
            raise
        own = np.frombuffer(_sockaddr(self._sockets[0]), np.uint8).copy()
        self._keys = Keys(np.frombuffer(secret, np.uint64).copy(), limits, own)

    def start(self) -> None:
        """Answer from now on."""
        self._loop.add_reader(self._from_workers, self._answer_slow)
        for number in range(len(self._sockets)):
            thread = threading.Thread(target=self._run, args=(number,), name=f"dns-{number}")
            thread.daemon = True  # an event loop that dies takes them along
            thread.start()
            self._threads.append(thread)

    def take(self, table: Table) -> None:
        """Answer from this table. Its generation is another than that of the one before."""
        self._table = table
        self._control[GENERATION] = table.generation[0]

    def limit(self, limits: FastLimits) -> None:
        """Limit answers so, from the next table on."""
        self._keys = self._keys._replace(limits=limits)

    async def close(self) -> None:
        """Stop; takes up to a receive timeout."""
        self._control[STOP] = 1
        self._loop.remove_reader(self._from_workers)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        self._close_sockets()

    def _close_sockets(self) -> None:
        for each in (*self._sockets, self._slow, self._from_workers):
            each.close()

    def _run(self, number: int) -> None:
        sockets = Sockets(self._sockets[number].fileno(), self._slow.fileno())
        batch, scratch = make_batch(), self.scratches[number]
        waiting = 0
        while not self._control[STOP]:
            waiting = serve(
                sockets, batch, self._table, self._keys, scratch, self._control, waiting
            )

    # --- the slow path ---------------------------------------------------------------------------

    def _answer_slow(self) -> None:
        for _ in range(SLOW_AT_ONCE):
            try:
                slot = self._from_workers.recv(SLOT)
            except BlockingIOError:
                return
            to = _address(slot)
            answer = self._answer(slot[PACKET:], to[0])
            if answer is None:
                continue
            try:
                self._sockets[0].sendto(answer, socket.MSG_DONTWAIT, to)
            except OSError as error:  # that one cannot be answered; the others can
                logger.debug("no answer to %s: %s", to[0], error)


def _sockaddr(udp: socket.socket) -> bytes:
    """Return its own address as `recvmmsg` would write it."""
    name = udp.getsockname()
    packed = socket.inet_pton(udp.family, name[0].partition("%")[0])
    head = struct.pack("=H", udp.family) + struct.pack("!H", name[1])
    if udp.family == socket.AF_INET6:
        head += bytes(4)
    return (head + packed).ljust(SOCKADDR, b"\0")


def _address(slot: bytes) -> tuple[Any, ...]:
    """Return a sender, as `sendto` takes it."""
    (port,) = struct.unpack_from("!H", slot, 2)
    if slot[0] == INET:
        return socket.inet_ntop(socket.AF_INET, slot[4:8]), port
    flow, scope = struct.unpack_from("!I", slot, 4), struct.unpack_from("=I", slot, 24)
    return socket.inet_ntop(socket.AF_INET6, slot[8:24]), port, *flow, *scope


def is_supported() -> bool:
    """Return whether this machine is one whose structures `serving` knows."""
    return os.uname().sysname == "Linux" and struct.calcsize("P") == 8 and sys.byteorder == "little"
