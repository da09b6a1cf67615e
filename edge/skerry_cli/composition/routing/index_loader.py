"""The compiled index of an edge's router: loaded beside its work, once there are many nodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)


class IndexLoader:
    """Loads the router's kernels on a thread; until then, and without numba, Python prices."""

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir
        self._task: asyncio.Task[None] | None = None

    def __call__(self, use: Callable[[], None]) -> None:
        """Call `use` on this event loop once they are there."""
        self._task = asyncio.create_task(self._load(use), name="router kernels")

    async def _load(self, use: Callable[[], None]) -> None:
        if reason := await asyncio.to_thread(self._compile):
            logger.warning("nodes are priced in Python, and sampled: %s", reason)
        else:
            use()

    def _compile(self) -> str:
        """Return why there are no kernels, or "". An edge alone has neither core nor numba."""
        try:
            from skerry_cli.composition.routing.kernels import load_routing_kernels
            from skerry_core.config import ConfigError

            try:
                load_routing_kernels(self._cache_dir, _told)
            except ConfigError as error:
                return str(error)
        except ImportError as error:
            return f"{error.name} is missing"
        return ""


def _told(what: str, share: float) -> None:
    logger.debug("%s: %.0f %%", what, 100 * share)
