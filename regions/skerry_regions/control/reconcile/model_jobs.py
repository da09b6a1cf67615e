"""Work on models of this machine that takes its time: one job of a model at once, with progress."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from msgspec.structs import replace

from skerry.errors import SkerryError
from skerry_regions.control.desired.views import ModelAction, ModelJob, rfc3339
from skerry_regions.control.errors import Conflict, UnknownResource
from skerry_regions.models.catalog import CatalogError
from skerry_regions.models.problems import ModelProblem, PullCancelled
from skerry_regions.models.sources import Progress
from skerry_regions.process.cancellation import cancel_tasks
from skerry_regions.process.startup import on_thread

MAX_KEPT = 100  # jobs; of those that have ended the oldest go
MAX_RUNNING = 4  # that people wanted; what pools want is not counted
OWN = "skerry"  # who wanted it, where a pool did

Work = Callable[[Progress], str]
"""Blocks; returns what is worth knowing afterwards. Raises what a job may end with."""


class ModelJobs:
    """Jobs, running and ended. On one event loop; `clock` gives Unix seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._number = 0

    def all(self) -> list[ModelJob]:
        """Return them, oldest first."""
        return [each.seen() for each in self._jobs.values()]

    def running(self, model: str) -> ModelJob | None:
        """Return the job that works on a model now."""
        found = (each for each in self._jobs.values() if each.model == model and each.is_running)
        return next((each.seen() for each in found), None)

    def start(
        self,
        action: ModelAction,
        model: str,
        work: Work,
        *,
        actor: str,
        ended: Callable[[Exception | None], None],
    ) -> ModelJob:
        """Begin a job; `ended` is called with what it failed with, or None. Raises Conflict."""
        if (running := self.running(model)) is not None:
            raise Conflict(f"a job works on {model} already: {running.id}", field="source")
        own = [each for each in self._jobs.values() if each.is_running and each.actor != OWN]
        if actor != OWN and len(own) >= MAX_RUNNING:
            raise Conflict(f"{MAX_RUNNING} jobs run already: wait for one, or cancel it")
        self._number += 1
        job = _Job(
            ModelJob(
                id=f"{self._number:08d}", action=action, model=model, actor=actor,
                started_at=rfc3339(self._clock()),
            )
        )  # fmt: skip
        self._jobs[job.id] = job
        over = [each.id for each in self._jobs.values() if not each.is_running]
        for id in over[: max(0, len(self._jobs) - MAX_KEPT)]:
            del self._jobs[id]
        job.task = asyncio.create_task(self._run(job, work, ended), name=f"{action} {model}")
        return job.seen()

    def cancel(self, id: str) -> ModelJob:
        """Have a job end soon: what it has downloaded is kept for the next one.

        Raises UnknownResource.
        """
        job = self._jobs.get(id)
        if job is None:
            raise UnknownResource(f"there is no job {id!r}")
        job.is_cancelled = True
        return job.seen()

    async def close(self) -> None:
        for each in self._jobs.values():
            each.is_cancelled = True
        await cancel_tasks(*(each.task for each in self._jobs.values()))

    async def _run(self, job: _Job, work: Work, ended: Callable[[Exception | None], None]) -> None:
        failed: Exception | None = None
        message = ""
        try:
            message = await on_thread(lambda: work(job.progress))
        except (SkerryError, ModelProblem, CatalogError, OSError) as error:
            failed, message = error, str(error)
        is_cancelled = isinstance(failed, PullCancelled)
        state = "done" if failed is None else "cancelled" if is_cancelled else "failed"
        job.end(replace(job.view, state=state, message=message, ended_at=rfc3339(self._clock())))
        ended(failed)


class _Job:
    """One of them. Its progress is written by a thread and read on the event loop."""

    def __init__(self, view: ModelJob) -> None:
        self.view = view
        self.id, self.model, self.actor = view.id, view.model, view.actor
        self.is_running = True
        self.is_cancelled = False
        self.task: asyncio.Task[None] | None = None

    def progress(self, what: str, share: float) -> None:
        """Note it. Raises `PullCancelled` once it is cancelled."""
        if self.is_cancelled:
            raise PullCancelled(f"{self.model}: cancelled; what has arrived is kept for a week")
        size = getattr(what, "size", None)
        self.view = replace(self.view, doing=str(what), share=share, num_bytes=size)

    def end(self, view: ModelJob) -> None:
        self.view = view
        self.is_running = False

    def seen(self) -> ModelJob:
        """Return it as it is now."""
        if self.is_running and self.is_cancelled:
            return replace(self.view, state="cancelling")
        return self.view
