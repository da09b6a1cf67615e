"""Distances between regions, on one machine: relays that hold every byte back on its way.

    emulate: {rtt: links}        in a topology: round trips take what `links` say

Each socket that other regions reach has one relay per region, beside it. What comes in leaves half
a round trip later, in order; so does the end of a connection. Bandwidth is not held down, nothing
is lost, and clients reach their edge at once. All relays are one process, `main`.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import msgspec

from skerry_regions.address import Address
from skerry_regions.process.lifeline import Lifeline
from skerry_regions.process.startup import stop_on_signals
from skerry_regions.topology.loading import load_topology
from skerry_regions.topology.spec import Topology

MAX_WAITING = 8 << 20  # bytes on their way in one direction; beyond, the sender is held up


def relayed(address: str, region: str) -> str:
    """Return where processes of another `region` reach the unix socket at `address`.

    The name is short, whatever the region's: the kernel bounds the paths of sockets.
    """
    tag = hashlib.blake2b(region.encode(), digest_size=4).hexdigest()
    return f"{address}~{tag}"


def through_relays(address: str, region: str, source: str) -> str:
    """Return the address by a relay, as the `Reach` of a directory of emulated regions."""
    return address if region == source else relayed(address, source)


def relays_command(topology: Path, sockets: Path) -> list[str]:
    """Return what runs the relays of a topology file; `sockets` is JSON, as `relays` takes them."""
    return [sys.executable, "-m", "skerry_regions.process.emulation", str(topology), str(sockets)]


def main(topology: str, sockets: str, _: str, lifeline: str) -> None:
    """Pass bytes on until SIGTERM."""
    pairs = msgspec.json.decode(Path(sockets).read_bytes(), type=list[tuple[str, str]])
    made = relays(load_topology(Path(topology)), pairs)
    asyncio.run(_serve(made, Lifeline(int(lifeline))))


async def _serve(made: list[Relay], lifeline: Lifeline) -> None:
    stop = stop_on_signals()
    for relay in made:
        await relay.listen()
    lifeline.ready({"relays": len(made)})
    await stop.wait()
    for relay in made:
        await relay.close()


def relays(topology: Topology, sockets: Iterable[tuple[str, str]]) -> list[Relay]:
    """Return for each (address, region) one relay for every other region."""
    priors = topology.link_priors()
    delays = {pair: speed.rtt / 2 for pair, speed in priors.items()}
    delays |= {(b, a): delay for (a, b), delay in delays.items()}
    return [
        Relay(
            Address.parse(relayed(address, other.name)),
            Address.parse(address),
            delays[region, other.name],
        )
        for address, region in sockets
        for other in topology.regions
        if other.name != region
    ]


class Relay:
    """Listens at one address, passes on to another. Lives on one event loop."""

    def __init__(self, near: Address, far: Address, delay: float) -> None:
        """`delay` is one way, in seconds."""
        self._near, self._far, self._delay = near, far, delay
        self._server: asyncio.AbstractServer | None = None
        self._ends: set[_End] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Raises OSError or AddressError."""
        self._server, _ = await self._near.listen(self._accepted)

    async def close(self) -> None:
        """Stop listening and break every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for end in list(self._ends):
            end.abort()
        await asyncio.sleep(0)  # one turn of the loop, in which they close

    def _accepted(self) -> _End:
        near = _End(self._delay, self._ends)
        task = asyncio.create_task(self._connect(near))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return near

    async def _connect(self, near: _End) -> None:
        far = _End(self._delay, self._ends)
        near.peer, far.peer = far, near
        try:
            await self._far.connect(lambda: far)
        except OSError:
            near.end()


class _End(asyncio.Protocol):
    """One end of a relayed connection: what it reads is written by its peer, later."""

    def __init__(self, delay: float, ends: set[_End]) -> None:
        self.peer: _End | None = None
        self._ends = ends
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []  # to write, before the connection was made
        self._is_over = False
        self._pipe = _Pipe(delay, self._pass_on, self._hold_up)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ends.add(self)
        for data in self._early:
            self._transport.write(data)
        self._early.clear()
        if self._is_over:
            self.end()

    def data_received(self, data: bytes) -> None:
        self._pipe.push(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._ends.discard(self)
        self._pipe.push(b"")

    def write(self, data: bytes) -> None:
        """Write; nothing to write is the end."""
        if not data:
            self.end()
        elif self._transport is not None:
            self._transport.write(data)
        else:
            self._early.append(data)

    def end(self) -> None:
        """Close it, once all is written."""
        self._is_over = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _pass_on(self, data: bytes) -> None:
        if self.peer is not None:
            self.peer.write(data)

    def _hold_up(self, held: bool) -> None:
        if self._transport is not None:
            (self._transport.pause_reading if held else self._transport.resume_reading)()


class _Pipe:
    """One direction: what is pushed comes out `delay` seconds later, in order."""

    def __init__(
        self, delay: float, out: Callable[[bytes], None], hold_up: Callable[[bool], None]
    ) -> None:
        self._delay, self._out, self._hold_up = delay, out, hold_up
        self._waiting: deque[tuple[float, bytes]] = deque()  # when it is due
        self._size = 0  # bytes

    def push(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._waiting.append((loop.time() + self._delay, data))
        self._size += len(data)
        if self._size > MAX_WAITING:
            self._hold_up(True)
        if len(self._waiting) == 1:
            loop.call_at(self._waiting[0][0], self._release)

    def _release(self) -> None:
        loop = asyncio.get_running_loop()
        was_full = self._size > MAX_WAITING
        while self._waiting and self._waiting[0][0] <= loop.time():
            data = self._waiting.popleft()[1]
            self._size -= len(data)
            self._out(data)
        if was_full and self._size <= MAX_WAITING:
            self._hold_up(False)
        if self._waiting:
            loop.call_at(self._waiting[0][0], self._release)


if __name__ == "__main__":
    main(*sys.argv[1:])
