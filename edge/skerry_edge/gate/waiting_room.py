"""Requests for models that have no node yet wait for the first one, instead of failing.

A pool that was scaled to none needs some seconds to wake. What waits is bounded in number, each
request by its own deadline; how many wait is what wakes the pool. While nothing wakes it, because
the control plane is away or cannot start a node, a request is not held for longer than
`hold_seconds`: its caller is to come back.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace

from skerry.errors import Overloaded, RequestTimeout, Unavailable
from skerry_edge.gate.quotas import HOLD_SECONDS
from skerry_regions.wire.client import RegionClient, TokenStream
from skerry_regions.wire.protocol import Embed, Submit

MAX_HELD = 256  # requests, of all models
LOOK_SECONDS = 0.05
RETRY_SECONDS = 5.0  # sent to who finds the room full, or leaves it without a node


class WaitingRoom:
    """A `RegionClient` in front of another one. Who brings no deadline waits until cancelled."""

    def __init__(
        self,
        region: RegionClient,
        *,
        max_held: int = MAX_HELD,
        is_starting: Callable[[str], bool] = lambda model: False,
        hold_seconds: Callable[[], float] = lambda: HOLD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_starting` says whether a node of a model is being started; `clock` gives seconds."""
        self._region = region
        self._max_held = max_held
        self._is_starting = is_starting
        self._hold_seconds = hold_seconds
        self._clock = clock
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> dict[str, int]:
        """Count how many wait, by model."""
        return {model: number for model, number in self._held.items() if number}

    async def generate(self, submit: Submit) -> TokenStream:
        """See `RegionClient.generate`. Also raises `RequestTimeout` when no node came in time, or
        `Unavailable` when none was even started."""
        if submit.model in self._region.models():
            return await self._region.generate(submit)
        if submit.seconds_left is None:
            await self._wait(submit.model)
            return await self._region.generate(submit)
        deadline = self._clock() + submit.seconds_left
        await self._wait(submit.model, deadline)
        left = max(0.0, deadline - self._clock())  # a node may come as the time is up
        submit = replace(submit, seconds_left=left)
        return await self._region.generate(submit)

    async def embed(self, embed: Embed) -> bytes:
        """See `RegionClient.embed`; as `generate`."""
        if embed.model not in self._region.models():
            await self._wait(embed.model)
        return await self._region.embed(embed)

    def models(self) -> frozenset[str]:
        return self._region.models()

    async def close(self) -> None:
        await self._region.close()

    async def _wait(self, model: str, deadline: float = math.inf) -> None:
        """Wait until the model has a node.

        Raises `RequestTimeout` when that time of the clock comes, or `Unavailable`.
        """
        if self._held.total() >= self._max_held:
            raise Overloaded(
                f"{self._max_held} requests wait already for a first node of their model",
                retry_after=RETRY_SECONDS,
            )
        self._held[model] += 1
        started_at = self._clock()  # a node, as far as is known; or the wait
        try:
            while model not in self._region.models():
                now = self._clock()
                if now >= deadline:
                    raise RequestTimeout(f"no node of {model} was ready in time")
                if self._is_starting(model):
                    started_at = now
                elif now - started_at >= self._hold_seconds():
                    raise Unavailable(
                        f"no node of {model} is being started",
                        retry_after=RETRY_SECONDS,
                    )
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._held[model] -= 1
