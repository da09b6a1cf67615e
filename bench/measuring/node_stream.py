"""The events of one submission to a node, and when its tokens came."""

from __future__ import annotations

import asyncio
import time

from skerry_regions.wire.protocol import Accepted, Done, Event, Failed, Tokens


class NodeStream:
    """A node's sink. Times are seconds of `time.perf_counter`."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.times: list[float] = []  # of each step's tokens
        self._ended: asyncio.Future[Done] = asyncio.get_running_loop().create_future()

    def __call__(self, event: Accepted | Event) -> None:
        match event:
            case Tokens():
                self.times.append(time.perf_counter())
            case Done():
                self._ended.set_result(event)
            case Failed():
                self._ended.set_exception(RuntimeError(event.message))
            case Accepted():
                pass

    @property
    def first_seconds(self) -> float:
        """From the submission to the first tokens."""
        return self.times[0] - self.started

    async def ended(self) -> int:
        """Wait for the end; tokens of the prompt that were cached."""
        return (await self._ended).usage.cached_tokens
