"""Models on this machine: which are installed, and getting those that are not."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from skerry.errors import SkerryError
from skerry_regions.control.desired.views import ModelAction, ModelJob
from skerry_regions.control.planning.wanted import INSTALLING, ModelState
from skerry_regions.control.reconcile.model_jobs import OWN, ModelJobs, Work
from skerry_regions.models.catalog import Catalog, CatalogError, ModelSpec
from skerry_regions.models.catalog_edits import EngineChecks, pull_model
from skerry_regions.models.problems import PullCancelled, left_out_by
from skerry_regions.models.pulling import Checks, PullRequest
from skerry_regions.models.sources import Hub, Progress
from skerry_regions.models.store import ModelStore

RETRY_SECONDS = 30.0  # after a download that failed
RELOAD_SECONDS = 5.0  # between looks at a catalog that lacks a model

NO_CHECKS = Checks(
    config=lambda config, task: None, head=lambda head: True, opens=lambda weights, task: None
)

logger = logging.getLogger(__name__)


class ModelBook:
    """Reports the state of each model that is requested, and downloads it. On one event loop."""

    def __init__(
        self,
        home: Path,
        changed: Callable[[], None],
        checks: EngineChecks = lambda: NO_CHECKS,
        edited: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called when a model's state did; `checks` are the engine's, of files that no
        node could open; `edited` is called on a thread, after the home's catalog was. Raises
        CatalogError."""
        self.home = home
        self.edited = edited
        self.checks = checks
        self.catalog = Catalog.load(home)
        self.store = ModelStore(home, hub=Hub.from_environ(os.environ))
        self.jobs = ModelJobs(time.time)
        self._changed = changed
        self._loaded_at = time.monotonic()
        self._installed: set[str] = set()
        self._problems: dict[str, tuple[ModelState, float]] = {}  # what went wrong, and when

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
        if self.jobs.running(spec.id) is None:
            self.pull(spec, OWN)
        return problem or ModelState(id=spec.id, blocked=INSTALLING)

    async def problem(self, name: str) -> str:
        """Return why no catalog has an id or alias, by what is on disk now; empty if one has."""
        try:
            if name not in self.catalog.names:
                await self.reload()
            self.catalog.resolve(name)
        except SkerryError as error:
            return error.message
        except CatalogError as error:
            return str(error)
        return ""

    async def reload(self) -> None:
        """Read the catalog again. Raises CatalogError; the former one stays."""
        self.catalog = await asyncio.to_thread(Catalog.load, self.home)
        self._loaded_at = time.monotonic()

    def pull(self, asked: ModelSpec | PullRequest, actor: str) -> ModelJob:
        """Begin to install a model. Raises Conflict."""
        return self.begin("pull", asked.id, functools.partial(self._install, asked), actor)

    def begin(self, action: ModelAction, model: str, work: Work, actor: str) -> ModelJob:
        """Begin a job after which a model is there. Raises Conflict."""
        ended = functools.partial(self._ended, model)
        return self.jobs.start(action, model, work, actor=actor, ended=ended)

    def failure(self, model: str) -> str:
        """Return what a model's last job failed with; empty where it did not."""
        problem, _ = self._problems.get(model, (None, 0.0))
        return "" if problem is None else problem.blocked

    def forget(self, model: str) -> None:
        """Look at a model's files again, when it is wanted next."""
        self._installed.discard(model)
        self._problems.pop(model, None)

    async def close(self) -> None:
        await self.jobs.close()

    def _resolve(self, name: str) -> ModelSpec:
        """Raises ModelNotFound, or CatalogError when the operator's catalog broke meanwhile."""
        try:
            return self.catalog.resolve(name)
        except SkerryError:
            if time.monotonic() - self._loaded_at < RELOAD_SECONDS:
                raise
        self._loaded_at = time.monotonic()
        self.catalog = Catalog.load(self.home)
        return self.catalog.resolve(name)

    def _install(self, asked: ModelSpec | PullRequest, progress: Progress) -> str:
        """Return what is worth knowing of it. Raises ModelProblem, CatalogError or OSError."""
        pulled = pull_model(self.home, asked, self.checks, progress)
        if isinstance(asked, PullRequest):
            self.edited()
        self.checks().opens(pulled.files.weights, pulled.spec.task)
        return "; ".join(pulled.notes)

    def _ended(self, model: str, error: Exception | None) -> None:
        if error is None:
            self._installed.add(model)
            self._problems.pop(model, None)
        elif not isinstance(error, PullCancelled):
            logger.warning("model %s cannot be installed: %s", model, error)
            reason = left_out_by(model, error).reason
            state = ModelState(id=model, blocked=str(error), left_out=reason)
            self._problems[model] = state, time.monotonic()
        self._changed()
