"""Pauses that an event ends."""

from __future__ import annotations

import asyncio
import contextlib


async def until_set(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, but not longer than so many seconds."""
    with contextlib.suppress(TimeoutError):  # `wait_for` would lose a cancellation here
        async with asyncio.timeout(seconds):
            await event.wait()
