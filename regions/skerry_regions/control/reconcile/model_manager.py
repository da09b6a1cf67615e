"""What people see of the models of this machine, and what operators do with them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from skerry.errors import ModelNotFound
from skerry_regions.control.desired.views import ModelJob, ModelRequest, ModelView, ModelViewState
from skerry_regions.control.errors import Conflict, Forbidden, Invalid, UnknownResource
from skerry_regions.control.reconcile.models import ModelBook
from skerry_regions.models import catalog_edits
from skerry_regions.models.catalog import CatalogError, ModelSpec, packaged_ids
from skerry_regions.models.hub_catalog import HubCatalog, HubModel
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.problems import ModelProblem
from skerry_regions.models.sources import Progress

WantedModels = Mapping[str, str]  # names of models, by the ids of the pools that want them


class ModelManager:
    """The models of a `ModelBook`, for the control API. On one event loop."""

    def __init__(
        self,
        book: ModelBook,
        *,
        takes: Callable[[ModelSpec, ModelFiles], dict[str, Any]] = lambda spec, files: {},
        folders: tuple[Path, ...] = (),
    ) -> None:
        """`takes` returns what a model takes of memory, and raises ModelProblem; `folders` are
        those whose files may be added."""
        self._book = book
        self._takes = takes
        self._folders = folders

    async def problem(self, name: str) -> str:
        """Return why no catalog has an id or alias; empty for one that can be had."""
        return await self._book.problem(name)

    async def views(self, wanted: WantedModels, *, known: bool = False) -> list[ModelView]:
        """Return the models of the catalog by id; `known`: also those that a hub has.

        Raises Conflict where the catalog cannot be read.
        """
        others = await asyncio.to_thread(lambda: list(HubCatalog.load())) if known else []
        await self._reload()
        catalog = self._book.catalog
        pools: dict[str, list[str]] = {}
        for pool, name in wanted.items():
            if name in catalog.names:
                pools.setdefault(catalog.names[name].id, []).append(pool)
        views = {each.id: self._hub_view(each) for each in others}
        views |= {each.id: self._view(each, pools.get(each.id, [])) for each in catalog}
        return [views[id] for id in sorted(views)]

    async def view(self, name: str, wanted: WantedModels) -> ModelView:
        """Return one by id or alias, with what it takes. Raises UnknownResource or Conflict."""
        views = {each.id: each for each in await self.views(wanted)}
        spec = self._found(name)
        if views[spec.id].state != "installed":
            return views[spec.id]
        try:
            takes = await asyncio.to_thread(lambda: self._takes(spec, self._book.store.open(spec)))
        except (ModelProblem, OSError) as error:
            raise Conflict(str(error)) from None
        return replace(views[spec.id], takes=takes)

    def jobs(self) -> list[ModelJob]:
        """Return those that run, and the last that have ended."""
        return self._book.jobs.all()

    async def begin(self, asked: ModelRequest, actor: str) -> ModelJob:
        """Begin to pull or to add a model. Raises ControlError."""
        home, source, name = self._book.home, asked.source, asked.name
        try:
            if name is not None:
                catalog_edits.check_new(name, replaces=asked.replace)
            if asked.action == "pull":
                find = functools.partial(catalog_edits.what_to_pull, home, source, name)
                return self._book.pull(await asyncio.to_thread(find), actor)
            if name is None:
                raise Invalid("say what to call it", field="name")
            await self._reload()
            return self._book.begin("add", name, self._adding(source, name), actor)
        except ModelNotFound as error:
            raise Invalid(error.message, field="source") from None
        except (ModelProblem, CatalogError) as error:
            raise Invalid(str(error), field="source") from None

    def cancel(self, id: str, wanted: WantedModels) -> ModelJob:
        """Have a job end. Raises UnknownResource, or Conflict for a model that a pool wants."""
        job = next((each for each in self.jobs() if each.id == id), None)
        if job is not None:
            self._check_unwanted(job.model, wanted)
        return self._book.jobs.cancel(id)

    async def remove(self, name: str, wanted: WantedModels) -> None:
        """Take a model or another name out, and delete what was downloaded. Raises ControlError."""
        await self._reload()
        spec = self._found(name)
        if (job := self._book.jobs.running(spec.id)) is not None:
            raise Conflict(f"{spec.id} is being installed: cancel the job {job.id} first")
        self._check_unwanted(name, wanted)

        def take_out() -> None:
            if catalog_edits.remove_model(self._book.home, name).from_catalog:
                self._book.edited()

        try:
            await asyncio.to_thread(take_out)
        except (ModelProblem, CatalogError, OSError) as error:
            raise Conflict(str(error)) from None
        self._book.forget(spec.id)
        await self._reload()

    def _adding(self, source: str, name: str) -> Callable[[Progress], str]:
        """Return what enters a file, or another name. Raises ModelNotFound or Forbidden."""
        home, checks = self._book.home, self._book.checks
        if not source.startswith("/"):
            target = self._book.catalog.resolve(source).id

            def enter(progress: Progress) -> str:
                catalog_edits.add_alias(home, name, target)
                self._book.edited()
                return f"another name of {target}"

            return enter
        path = Path(source).resolve()
        if not any(path.is_relative_to(folder.resolve()) for folder in self._folders):
            raise Forbidden(
                "files are added from folders of SKERRY_MODEL_FOLDERS alone, which this is not in; "
                "on the machine itself `skerry models add` takes any",
                field="source",
            )

        def add(progress: Progress) -> str:
            catalog_edits.add_own(home, path, name, checks, progress)
            self._book.edited()
            return ""

        return add

    async def _reload(self) -> None:
        try:
            await self._book.reload()
        except CatalogError as error:
            raise Conflict(str(error)) from None

    def _found(self, name: str) -> ModelSpec:
        try:
            return self._book.catalog.resolve(name)
        except ModelNotFound as error:
            raise UnknownResource(error.message) from None

    def _check_unwanted(self, name: str, wanted: WantedModels) -> None:
        """Raise Conflict for a name, or a model by any of its names, that a pool wants."""
        spec = self._book.catalog.names.get(name)
        names = {name} if spec is None or spec.id != name else {spec.id, *spec.aliases}
        if users := [pool for pool, each in wanted.items() if each in names]:
            raise Conflict(f"{name} is wanted by {', '.join(users[:5])}: give these another first")

    def _view(self, spec: ModelSpec, pools: list[str]) -> ModelView:
        is_running = self._book.jobs.running(spec.id) is not None
        failure = self._book.failure(spec.id)
        is_there = self._book.store.is_installed(spec)
        settled: ModelViewState = "installed" if is_there else "failed" if failure else "absent"
        return ModelView(
            id=spec.id,
            aliases=spec.aliases,
            task=spec.task,
            context_window=spec.context_window,
            num_bytes=spec.size,
            source=spec.source,
            state="installing" if is_running else settled,
            message=failure,
            is_own=spec.id not in packaged_ids(),
            wanted_by=tuple(pools),
        )

    def _hub_view(self, model: HubModel) -> ModelView:
        is_running = self._book.jobs.running(model.id) is not None
        failure = self._book.failure(model.id)
        return ModelView(
            id=model.id,
            task=model.task,
            context_window=model.context_window,
            source=f"hf:{model.repository(model.usual)}",
            state="installing" if is_running else "failed" if failure else "absent",
            message=failure,
        )
