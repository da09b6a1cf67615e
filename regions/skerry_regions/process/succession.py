"""Processes that are replaced while they serve: the successor is ready before the old one leaves.

Both serve at what they share, such as a listening socket, until the old one is to leave to its
successor (SIGUSR2). It then finishes what runs, and ends.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterator

from skerry_regions.process.children import ProcessSpec
from skerry_regions.process.supervisor import FirstStartFailed, Supervised

logger = logging.getLogger(__name__)


class Succession:
    """Supervised processes by name, each to be replaced by another of its name.

    `patience` is how many seconds a process may take to finish, once it is to leave.
    """

    def __init__(
        self, supervise: Callable[[ProcessSpec, bool], Supervised], patience: float
    ) -> None:
        """`supervise` is called with whether it is to be one beside that which serves."""
        self._supervise = supervise
        self._patience = patience
        self._serving: dict[str, Supervised] = {}
        self._beside: set[Supervised] = set()  # successors to be, and those that leave
        self._leaving: set[asyncio.Task[None]] = set()
        self.failures: dict[str, str] = {}  # by name: when and why it could not be replaced

    def __getitem__(self, name: str) -> Supervised:
        """Return the process that serves now."""
        return self._serving[name]

    def __iter__(self) -> Iterator[Supervised]:
        """Return the processes that serve now."""
        return iter(self._serving.values())

    def begin(self, specs: list[ProcessSpec]) -> None:
        """Start all at once, or adopt them."""
        for spec in specs:
            self._serving[spec.id] = self._supervise(spec, False)

    async def wait_until_ready(self) -> None:
        """Raises FirstStartFailed as soon as one does."""
        await asyncio.gather(*(process.wait_until_ready() for process in self))

    async def renew(self, spec: ProcessSpec) -> None:
        """Replace the process of this name. It stays when its successor does not start."""
        self.failures.pop(spec.id, None)
        successor = self._supervise(spec, True)
        self._beside.add(successor)
        try:
            await successor.wait_until_ready()
        except FirstStartFailed as error:
            logger.error("%s stays as it is: %s", spec.id, error)
            self.failures[spec.id] = f"{spec.id} was not replaced at {time.strftime('%T')}: {error}"
            self._beside.discard(successor)
            return
        self._beside.discard(successor)
        leaving, self._serving[spec.id] = self._serving[spec.id], successor
        self._beside.add(leaving)
        task = asyncio.create_task(self._let_go(leaving), name=f"{spec.id} leaves")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _let_go(self, process: Supervised) -> None:
        await process.stop(self._patience, signal.SIGUSR2)
        self._beside.discard(process)

    def retire(self) -> None:
        """Start none again when it ends."""
        for process in (*self, *self._beside):
            process.retire()

    async def stop(self, seconds: float) -> None:
        """Drain and end all, those that leave as well; kill what is left. Idempotent."""
        await asyncio.gather(*(process.stop(seconds) for process in (*self, *self._beside)))
