"""Listeners of edges: the port stays, also while one is replaced or started again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Collection

from skerry_regions.address import Address
from skerry_regions.control.planning.launcher import Launch, LaunchFailed
from skerry_regions.process.launch_folder import LaunchRecord
from skerry_regions.process.spawning import HeldListener, bound, resolved

HOLD_SECONDS = 30.0  # that callers of an edge which died wait for the next


class EdgeListeners:
    """Of one machine, by edge node. Lives on one event loop."""

    def __init__(self, running: Callable[[], Collection[LaunchRecord]]) -> None:
        """`running` are the processes of this home."""
        self._running = running
        self._held: dict[str, HeldListener] = {}

    async def take(self, launch: Launch, host: str) -> HeldListener:
        """Return where an edge is to listen: with those who wait already, where some may. Raises
        LaunchFailed."""
        held, port = self._held.get(launch.owner), launch.port
        try:
            address = await asyncio.to_thread(resolved, host)
            if held is None or held.host != address or port not in (0, held.port):
                self._let_go(launch.owner)
                held = HeldListener(self._bound(launch, address))
                self._held[launch.owner] = held
        except OSError as error:
            raise LaunchFailed(
                f"{launch.id} cannot listen on {host} port {port}: {error.strerror}"
            ) from None
        return held

    def hold(self, record: LaunchRecord) -> None:
        """Listen in place of an edge that died: callers wait for the next, if it comes in time."""
        if self._is_served(record.owner):
            return
        if record.owner not in self._held:  # it was adopted: its socket is gone with it
            address = Address.parse(record.address)
            with contextlib.suppress(OSError):  # callers are refused
                self._held[record.owner] = HeldListener(bound(address.host, address.port))
        if (held := self._held.get(record.owner)) is not None:
            held.listen()
        loop = asyncio.get_running_loop()
        loop.call_later(HOLD_SECONDS, self.let_go_of_unserved, record.owner)

    def let_go_of_unserved(self, edge: str) -> None:
        """Listen for an edge no more, unless one serves: who does not accept must not be called."""
        if not self._is_served(edge):
            self._let_go(edge)

    def close(self) -> None:
        """Let go of all."""
        for edge in [*self._held]:
            self._let_go(edge)

    def _is_served(self, edge: str) -> bool:
        """Return whether a process of an edge node runs that is to stay."""
        return any(each.owner == edge and each.draining_since is None for each in self._running())

    def _let_go(self, edge: str) -> None:
        if (held := self._held.pop(edge, None)) is not None:
            held.close()

    def _bound(self, launch: Launch, host: str) -> socket.socket:
        """Return a socket at an edge's port. Raises OSError where another has it."""
        ours = {
            Address.parse(each.address).port
            for each in self._running()
            if each.kind == "edge"
            and (each.owner == launch.owner or each.draining_since is not None)
        }
        if launch.port:
            return bound(host, launch.port, is_shared=launch.port in ours)
        former = launch.former_port
        try:
            return bound(host, former, is_shared=former in ours)
        except OSError:
            return bound(host, 0)
