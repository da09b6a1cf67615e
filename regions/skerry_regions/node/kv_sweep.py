"""While a node runs, it removes the KV files that nodes before it left in its home."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from skerry_core.kv.sweep import sweep

FIRST_SECONDS = 600.0  # by then all nodes of the home have opened theirs
EVERY_SECONDS = 3600.0

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def sweeping(home: Path) -> AsyncGenerator[None]:
    """Sweep `cache/kv` of a home every hour until the block ends."""
    task = asyncio.create_task(_sweep(home / "cache" / "kv"), name="sweep KV files")
    try:
        yield
    finally:
        task.cancel()


async def _sweep(folder: Path) -> None:
    await asyncio.sleep(FIRST_SECONDS)
    while True:
        for path in await asyncio.to_thread(sweep, folder, time.time()):
            logger.info("removed %s: no node uses it", path)
        await asyncio.sleep(EVERY_SECONDS)
