"""A small stream of messages, and a wait for what happens to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from skerry_regions.drivers.jetstream.specs import MIB, StreamSpec

SPEC = StreamSpec(table="test", max_bytes=8 * MIB, max_message_bytes=1024, is_durable=True)


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (it is a server's, or another task's)
            await asyncio.sleep(0.02)
