"""Connections as they arrive: networks take turns, and TLS handshakes hold places.

The system hands connections over in the order of their arrival: whoever opens thousands at once has
everybody else wait until each of them is set up. Taking one from the system costs a hundredth of a
millisecond, a tenth of setting it up, so they are taken as they come, and wait for their turn here.

A server made by `loop.create_server` sets up all that wait in one go; and of TLS it reports no
connection before its handshake is done, and gives it a minute: whoever opens many and says nothing
would take every file that the process may open, beyond all limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
from collections import OrderedDict, deque
from collections.abc import Callable

from skerry_edge.http.connections import ConnectionTable, Holder, network_of
from skerry_regions.process.cancellation import cancel_tasks

BREATH_SECONDS = 1.0  # before accepting again, when the system refused
AT_ONCE = 512  # taken from the system before anything else is done: five milliseconds
TURNS = 8  # connections that are set up, likewise
MAX_WAITING = 2048  # for their turn
SETUP_SECONDS = 1.0  # of a connection that needs no handshake, on a busy machine

logger = logging.getLogger(__name__)


class Arrivals:
    """Connections that wait for their turn, by network. No I/O."""

    def __init__(self, size: int = MAX_WAITING) -> None:
        """At most `size` wait."""
        self._size = size
        self._len = 0
        self._networks: OrderedDict[str, deque[socket.socket]] = OrderedDict()  # next turn first

    def __len__(self) -> int:
        return self._len

    def put(self, connection: socket.socket, network: str) -> socket.socket | None:
        """Have a connection wait; return the one that there is no room for, if any: the oldest of
        the network with most. In a flood that goes on as many of its newest would be served, but
        who comes after one that is over is not to pay for it."""
        self._networks.setdefault(network, deque()).append(connection)
        self._len += 1
        if self._len <= self._size:
            return None
        most = max(self._networks, key=lambda name: len(self._networks[name]))
        return self._taken(most)

    def take(self) -> tuple[socket.socket, str]:
        """Return the connection whose turn it is, and its network. Raises KeyError."""
        network = next(iter(self._networks), "")
        connection = self._taken(network)
        if network in self._networks:
            self._networks.move_to_end(network)
        return connection, network

    def _taken(self, network: str) -> socket.socket:
        connection = self._networks[network].popleft()
        self._len -= 1
        if not self._networks[network]:
            del self._networks[network]
        return connection


class Setup:
    """A connection that is being set up; of TLS its handshake goes on, and it holds a place."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None

    def give_up(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Listener:
    """Accepts at a socket, and hands connections over, once their handshake is done if it is of
    TLS."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[Holder | None], asyncio.Protocol],
        *,
        table: ConnectionTable,
        tls: ssl.SSLContext | None,
        seconds: float,
    ) -> None:
        """Each handshake holds a place of the `table`, which `protocol` is given and takes over,
        and may take `seconds`. Needs the event loop that it is to run on."""
        self._listener = listener
        self._tls = tls
        self._protocol = protocol
        self._table = table
        self._seconds = seconds
        self._arrivals = Arrivals()
        self._setups: set[asyncio.Task[None]] = set()
        self._turns: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._resume()

    def leave(self) -> None:
        """Accept no more, and close the socket; whoever was accepted has come in time.
        Idempotent."""
        if self._listener.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        while self._arrivals:
            self._begin(*self._arrivals.take())

    async def close(self, seconds: float = 0.0) -> None:
        """Leave, and drop whose handshake goes on after `seconds`."""
        self.leave()
        patience = SETUP_SECONDS if self._tls is None else seconds
        if self._setups and patience > 0:
            await asyncio.wait(self._setups, timeout=patience)
        await cancel_tasks(*self._setups)

    def _resume(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Take what has come from the system."""
        for _ in range(AT_ONCE):
            try:
                connection, peer = self._listener.accept()
            except BlockingIOError:
                break
            except ConnectionAbortedError:  # the client has gone already
                continue
            except OSError as error:  # no file is left
                logger.warning("a connection was not accepted: %s", error)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(BREATH_SECONDS, self._resume)
                break
            connection.setblocking(False)
            surplus = self._arrivals.put(connection, network_of(peer))
            if surplus is not None:
                surplus.close()
        if self._arrivals and self._turns is None:
            self._take_turns()

    def _take_turns(self) -> None:
        """Set some connections up, and the rest once the event loop has done what else there is."""
        for _ in range(min(TURNS, len(self._arrivals))):
            self._begin(*self._arrivals.take())
        self._turns = self._loop.call_soon(self._take_turns) if self._arrivals else None

    def _begin(self, connection: socket.socket, network: str) -> None:
        setup = Setup()
        setup.task = self._loop.create_task(self._set_up(connection, setup), name="set up")
        if self._tls is not None:
            self._table.admit(setup, network)
        self._setups.add(setup.task)
        setup.task.add_done_callback(functools.partial(self._over, setup, connection))

    def _over(self, setup: Setup, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._setups.discard(task)
        self._table.release(setup)
        if task.cancelled():  # maybe before it began
            connection.close()

    async def _set_up(self, connection: socket.socket, setup: Setup) -> None:
        seconds = None if self._tls is None else self._seconds
        holder = None if self._tls is None else setup
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(holder),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=seconds,
            )
        except OSError as error:  # of TLS too: it is the client's affair
            logger.info("a connection was not set up: %s", error)
            with contextlib.suppress(OSError):
                connection.close()
