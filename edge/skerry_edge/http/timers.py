"""The deadlines of one connection, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timers:
    """Each name has one deadline at most."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._handles

    def set(self, name: str, seconds: float, act: Callable[[], object]) -> None:
        """Have `act` called in so many seconds, in place of what was set before."""
        self.cancel(name)
        self._handles[name] = self._loop.call_later(seconds, act)

    def cancel(self, *names: str) -> None:
        for name in names:
            if (handle := self._handles.pop(name, None)) is not None:
                handle.cancel()

    def cancel_all(self) -> None:
        self.cancel(*tuple(self._handles))
