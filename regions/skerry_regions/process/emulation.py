"""Distances between regions, on one machine: relays that hold every byte back on its way.

    emulate: {rtt: links}        in a topology: round trips take what `links` say

Each socket that other regions reach has one relay per region, beside it. What comes in leaves half
a round trip later, in order; so does the end of a connection. Between regions bandwidth is not held
down, nothing is lost, and clients reach their edge at once. All relays are one process, `main`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from skerry_regions.address import Address
from skerry_regions.process.cancellation import cancel_tasks
from skerry_regions.process.launch_folder import replace_file
from skerry_regions.process.lifeline import Lifeline
from skerry_regions.process.pauses import until_set
from skerry_regions.process.startup import stop_on_signals

LOOK_SECONDS = 0.1  # between two looks at the plan
MAX_WAITING = 8 << 20  # bytes on their way in one direction; beyond, the sender is held up


def relayed(address: str, region: str) -> str:
    """Return where processes of another `region` reach the unix socket at `address`.

    The name is short, whatever the region's: the kernel bounds the paths of sockets.
    """
    tag = hashlib.blake2b(region.encode(), digest_size=4).hexdigest()
    return f"{address}~{tag}"


def through_relays(address: str, region: str, source: str) -> str:
    """Return the address by a relay, as the `Reach` of a directory of emulated regions. What is on
    another machine is reached there."""
    is_near = region == source or not address.startswith("unix:")
    return address if is_near else relayed(address, source)


class RelayPlan(Struct, frozen=True, kw_only=True):
    """What is to be relayed."""

    rtts: tuple[tuple[str, str, float], ...]  # seconds, between two regions either way
    sockets: tuple[tuple[str, str], ...] = ()  # addresses, each with the region that it is in

    def relays(self) -> dict[str, tuple[str, float]]:
        """Return by each socket that other regions reach, where it leads, and the seconds of one
        way."""
        delays = {(a, b): rtt / 2 for a, b, rtt in self.rtts}
        delays |= {(b, a): delay for (a, b), delay in delays.items()}
        return {
            relayed(address, other): (address, delay)
            for address, region in self.sockets
            for (here, other), delay in delays.items()
            if here == region and other != region
        }


def _read(file: Path) -> RelayPlan:
    return msgspec.json.decode(file.read_bytes(), type=RelayPlan)


def _stamp_of(file: Path) -> object:
    """Return what differs when the file was written."""
    status = file.stat()
    return status.st_mtime_ns, status.st_ino


def _remove_socket(address: str) -> None:
    Path(Address.parse(address).path).unlink(missing_ok=True)


def relay(file: Path, sockets: tuple[tuple[str, str], ...]) -> None:
    """Have the relays of a plan's file be those of other sockets. Raises OSError."""
    data = msgspec.json.encode(replace(_read(file), sockets=sockets))
    replace_file(file, file.with_suffix(".draft"), data)


def relays_command(plan: Path) -> list[str]:
    """Return what runs the relays of a file: a `RelayPlan` as JSON, read again when it changes."""
    return [sys.executable, "-m", "skerry_regions.process.emulation", str(plan)]


def main(plan: str, _: str = "", lifeline: str = "") -> None:
    """Pass bytes on until SIGTERM."""
    asyncio.run(_serve(Path(plan), Lifeline(int(lifeline)) if lifeline else None))


async def _serve(file: Path, lifeline: Lifeline | None) -> None:
    stop = stop_on_signals()
    relays = RunningRelays()
    await relays.follow(file)
    if lifeline is not None:
        lifeline.ready({})
    while not stop.is_set():
        await until_set(stop, LOOK_SECONDS)
        with contextlib.suppress(OSError, msgspec.DecodeError):  # our supervisor has gone
            await relays.follow(file)
    await relays.close()


class RunningRelays:
    """The relays of a plan, which may change. Lives on one event loop."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[str, Relay]] = {}  # by where they listen; and where to
        self._stamp: object = None

    async def follow(self, file: Path) -> None:
        """Read the plan, if it was written since, and make it so. Raises OSError or
        msgspec.DecodeError."""
        if (stamp := _stamp_of(file)) != self._stamp:
            await self.run(_read(file).relays())
            self._stamp = stamp

    async def run(self, wanted: dict[str, tuple[str, float]]) -> None:
        """Run these, as `RelayPlan.relays` gives them; those that stay go on, with another delay
        if need be."""
        for near, (far, relay) in [*self._running.items()]:
            if near in wanted and wanted[near][0] == far:
                relay.delay = wanted[near][1]
            else:
                del self._running[near]
                await relay.close()
                _remove_socket(near)
        for near, (far, delay) in wanted.items():
            if near not in self._running:
                relay = Relay(Address.parse(near), Address.parse(far), delay)
                await relay.listen()
                self._running[near] = far, relay

    async def close(self) -> None:
        """Stop; another process may listen in our place already."""
        await asyncio.gather(*(relay.close() for _, relay in self._running.values()))


class Relay:
    """Listens at one address, passes on to another. Lives on one event loop."""

    def __init__(
        self, near: Address, far: Address, delay: float, bytes_per_second: float = math.inf
    ) -> None:
        """`delay` is one way, in seconds, of what comes while it stands; so many bytes leave in a
        second, each way of each connection."""
        self._near, self._far, self.delay = near, far, delay
        self.bytes_per_second = bytes_per_second
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
        await cancel_tasks(*self._connecting)
        for end in list(self._ends):
            end.abort()
        await asyncio.sleep(0)  # one turn of the loop, in which they close

    def _accepted(self) -> _End:
        near = _End(self, self._ends)
        task = asyncio.create_task(self._connect(near))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return near

    async def _connect(self, near: _End) -> None:
        far = _End(self, self._ends)
        near.peer, far.peer = far, near
        try:
            await self._far.connect(lambda: far)
        except OSError:
            near.end()


class _End(asyncio.Protocol):
    """One end of a relayed connection: what it reads is written by its peer, later."""

    def __init__(self, relay: Relay, ends: set[_End]) -> None:
        self.peer: _End | None = None
        self._ends = ends
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []  # to write, before the connection was made
        self._is_over = False
        self._pipe = _Pipe(relay, self._pass_on, self._hold_up)

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
    """One direction: what is pushed comes out its relay's delay later, in order."""

    def __init__(
        self, relay: Relay, out: Callable[[bytes], None], hold_up: Callable[[bool], None]
    ) -> None:
        self._relay, self._out, self._hold_up = relay, out, hold_up
        self._waiting: deque[tuple[float, bytes]] = deque()  # when it is due
        self._size = 0  # bytes
        self._is_free_at = 0.0  # what came before has left the sender

    def push(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._is_free_at = max(self._is_free_at, loop.time())
        self._is_free_at += len(data) / self._relay.bytes_per_second
        self._waiting.append((self._is_free_at + self._relay.delay, data))
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
