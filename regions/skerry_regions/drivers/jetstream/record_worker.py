"""A worker of one record: it makes one change at a time, while there is one to make."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from skerry_regions.process.cancellation import cancel_tasks

logger = logging.getLogger(__name__)


class RecordWorker(ABC):
    """Runs `_step` until nothing is to be done, and again once it is stirred. Lives on one event
    loop."""

    def __init__(self, name: str) -> None:
        """`name` is for the log."""
        self._name = name
        self._worker: asyncio.Task[None] | None = None

    @abstractmethod
    async def _step(self) -> bool:
        """Do what is next; return whether there was anything to do."""

    def _failed(self, error: Exception) -> None:  # noqa: B027  (few have to)
        """Take note of an error of `_step`, which was logged: the worker has ended."""

    def _stir(self) -> None:
        if self._worker is None:
            self._worker = asyncio.create_task(self._work(), name=self._name)

    async def _finish(self) -> None:
        """Wait until nothing is to be done."""
        if self._worker is not None:
            await asyncio.gather(self._worker, return_exceptions=True)

    async def end(self) -> None:
        """Stop what is under way."""
        await cancel_tasks(self._worker)

    async def _work(self) -> None:
        try:
            while await self._step():
                pass
        except Exception as error:
            logger.exception("%s", self._name)
            self._failed(error)
        finally:
            self._worker = None
