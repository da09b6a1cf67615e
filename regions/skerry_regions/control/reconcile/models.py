"""Models on this machine: which are installed, and getting those that are not."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from skerry.errors import SkerryError
from skerry_regions.control.planning.wanted import INSTALLING, ModelState
from skerry_regions.models.catalog import Catalog, CatalogError, ModelSpec
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.problems import ModelProblem, left_out_by
from skerry_regions.models.sources import Hub
from skerry_regions.models.store import ModelStore
from skerry_regions.process.startup import on_thread

RETRY_SECONDS = 30.0  # after a download that failed
RELOAD_SECONDS = 5.0  # between looks at a catalog that lacks a model

logger = logging.getLogger(__name__)


class ModelBook:
    """Reports the state of each model that is requested, and downloads it. On one event loop."""

    def __init__(
        self,
        home: Path,
        changed: Callable[[], None],
        opens: Callable[[ModelSpec, ModelFiles], None] = lambda spec, files: None,
    ) -> None:
        """`changed` is called when a model's state did; `opens`, on a thread, raises ModelProblem
        for files that no node could open. Raises CatalogError."""
        self._home = home
        self._changed = changed
        self._opens = opens
        self._catalog = Catalog.load(home)
        self._loaded_at = time.monotonic()
        self._store = ModelStore(home, hub=Hub.from_environ(os.environ))
        self._installed: set[str] = set()
        self._problems: dict[str, tuple[ModelState, float]] = {}  # what went wrong, and when
        self._pulls: dict[str, asyncio.Task[None]] = {}

    def __call__(self, name: str) -> ModelState:
        """Return the state of an id or alias."""
        try:
            spec = self._resolve(name)
        except (SkerryError, CatalogError) as error:
            return ModelState(id="", blocked=str(error))
        if spec.id in self._installed:
            return ModelState(id=spec.id)
        problem, at = self._problems.get(spec.id, (None, 0.0))
        if problem is not None and time.monotonic() - at < RETRY_SECONDS:
            return problem
        if spec.id not in self._pulls:
            self._pulls[spec.id] = asyncio.create_task(self._pull(spec), name=f"pull {spec.id}")
        return problem or ModelState(id=spec.id, blocked=INSTALLING)

    async def problem(self, name: str) -> str:
        """Return why no catalog has an id or alias, by what is on disk now; empty if one has."""
        try:
            if name not in self._catalog.names:
                self._catalog = await asyncio.to_thread(Catalog.load, self._home)
                self._loaded_at = time.monotonic()
            self._catalog.resolve(name)
        except SkerryError as error:
            return error.message
        except CatalogError as error:
            return str(error)
        return ""

    async def close(self) -> None:
        for pull in self._pulls.values():
            pull.cancel()
        await asyncio.gather(*self._pulls.values(), return_exceptions=True)

    def _resolve(self, name: str) -> ModelSpec:
        """Raises ModelNotFound, or CatalogError when the operator's catalog broke meanwhile."""
        try:
            return self._catalog.resolve(name)
        except SkerryError:
            if time.monotonic() - self._loaded_at < RELOAD_SECONDS:
                raise
        self._loaded_at = time.monotonic()
        self._catalog = Catalog.load(self._home)
        return self._catalog.resolve(name)

    async def _pull(self, spec: ModelSpec) -> None:
        try:
            await on_thread(lambda: self._install(spec))
        except (SkerryError, ModelProblem, OSError) as error:
            logger.warning("model %s cannot be installed: %s", spec.id, error)
            reason = left_out_by(spec.id, error).reason
            state = ModelState(id=spec.id, blocked=str(error), left_out=reason)
            self._problems[spec.id] = state, time.monotonic()
        else:
            self._installed.add(spec.id)
            self._problems.pop(spec.id, None)
        finally:
            del self._pulls[spec.id]
            self._changed()

    def _install(self, spec: ModelSpec) -> None:
        """Raises ModelProblem, SkerryError or OSError."""
        self._opens(spec, self._store.pull(spec, lambda what, share: None))
