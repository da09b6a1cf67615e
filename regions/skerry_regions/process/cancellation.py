"""Tasks that go on until they are cancelled."""

from __future__ import annotations

import asyncio
from typing import Any


async def cancel_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel those that were begun, and wait until all have ended, whatever they raise.

    Whoever is cancelled meanwhile waits for them too, and is cancelled then.
    """
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and wait until it has ended. Raises what it raised by itself."""
    await cancel_tasks(task)
    if not task.cancelled():
        task.result()
