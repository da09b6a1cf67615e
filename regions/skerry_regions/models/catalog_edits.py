"""Models and names put into a home and taken out of it: its catalog, and what is installed.

    pull_model     fetch one of the catalog, or find one on a hub and enter it
    add_own        enter a file, or a folder, where it lies
    remove_model   take one out, and delete what was downloaded

The rest are the edits of the operator's catalog: a change that it would not load with is not made.
"""

from __future__ import annotations

import datetime
import fcntl
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from skerry.errors import ModelNotFound
from skerry_regions.models import located_yaml
from skerry_regions.models.catalog import (
    Catalog,
    CatalogDocument,
    CatalogError,
    ModelSpec,
    operator_catalog,
    packaged_ids,
)
from skerry_regions.models.hub_catalog import HubCatalog
from skerry_regions.models.local_model import describe
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.problems import ModelProblem
from skerry_regions.models.pulling import Checks, PullRequest, resolve, wanted
from skerry_regions.models.sources import Hub, Progress
from skerry_regions.models.store import ModelStore

EngineChecks = Callable[[], Checks]
"""Imports what the engine says of models: slow, the first time."""


@dataclass(frozen=True, slots=True)
class PresentModel:
    """A model that is there now, and what is worth knowing of it, as sentences."""

    spec: ModelSpec
    files: ModelFiles
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RemovedModel:
    """What was there of a model, or of a name."""

    id: str
    from_catalog: bool
    from_disk: bool


def what_to_pull(home: Path, name: str, id: str | None) -> ModelSpec | PullRequest:
    """Return the model of the catalog that a name means, or what to look for on a hub.

    `id` is what to call it. Raises ModelNotFound, `PullError` or `CatalogError`.
    """
    if id is None and ":" not in name:
        try:
            return Catalog.load(home).resolve(name)
        except ModelNotFound:
            pass
    return wanted(name, HubCatalog.load(), id=id)


def pull_model(
    home: Path, asked: ModelSpec | PullRequest, checks: EngineChecks, progress: Progress
) -> PresentModel:
    """Install a model of the catalog, or find one on a hub and enter it.

    Raises `ModelProblem`, `CatalogError` and `OSError`.
    """
    store = _store(home)
    if isinstance(asked, ModelSpec):
        return PresentModel(asked, store.pull(asked, progress))
    from skerry_regions.models.hub import HubClient  # an HTTP client

    scratch = home / "models"  # on the disk of the models, so that files can be linked
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=scratch, prefix="pull-") as folder,
        HubClient(Hub.from_environ(os.environ)) as client,
    ):
        resolved = resolve(asked, client, checks(), store.blobs, Path(folder), progress)
        files = store.pull(resolved.spec, progress)
    add_model(home, resolved.spec)
    licence = f"licence {resolved.license}, from {resolved.spec.source}"
    notes = [licence, *resolved.notes] if resolved.license else resolved.notes
    return PresentModel(resolved.spec, files, tuple(notes))


def check_new(id: str, *, replaces: bool) -> None:
    """Raises `ModelProblem` for an id that comes with Skerry, unless it is to be replaced."""
    if id in packaged_ids() and not replaces:
        raise ModelProblem(
            f"{id} comes with Skerry: choose another id, or replace it (`--replace`) to serve "
            "yours in its place."
        )


def add_own(
    home: Path, path: Path, id: str, checks: EngineChecks, progress: Progress
) -> PresentModel:
    """Enter a GGUF file or a folder of safetensors, to be used where it lies.

    Raises `UnsupportedModel` for what no runner computes, `CatalogError` and `OSError`.
    """
    today = datetime.date.today()
    spec = describe(path, id, created=today, progress=progress, check=checks().opens)
    files = _store(home).pull(spec, progress)
    add_model(home, spec)
    return PresentModel(spec, files)


def remove_model(home: Path, name: str) -> RemovedModel:
    """Take a model or another name out of the catalog, and delete what was downloaded.

    Raises ModelNotFound, `ModelProblem` where there is nothing to remove, and `CatalogError`.
    """
    spec = Catalog.load(home).resolve(name)
    file = remove_name(home, name)
    is_alias = name != spec.id
    if is_alias and file is None:
        raise ModelProblem(
            f"{name} is another name of {spec.id}, given by the catalog's own entry: remove "
            f"{spec.id}, or edit {operator_catalog(home)}."
        )
    had_files = not is_alias and _store(home).remove(spec)
    if file is None and not had_files:
        raise ModelProblem(f"{name} comes with Skerry and is not installed: nothing to remove.")
    return RemovedModel(name, from_catalog=file is not None, from_disk=had_files)


def _store(home: Path) -> ModelStore:
    return ModelStore(home, hub=Hub.from_environ(os.environ))


def add_model(home: Path, spec: ModelSpec) -> Path:
    """Write `spec` into the operator's catalog, replacing an entry of the same id.

    The file is rewritten as a whole, so comments in it are lost. Raises `CatalogError` when the
    catalog would not load with it; the file is then as it was.
    """
    defaults = {field.name: field.default for field in msgspec.structs.fields(ModelSpec)}
    stated = msgspec.to_builtins(spec)
    entry = {key: stated[key] for key in defaults if getattr(spec, key) != defaults[key]}

    def change(content: dict[str, Any]) -> None:
        others = [model for model in content.get("models") or [] if model["id"] != spec.id]
        content["models"] = [*others, entry]

    return _edit(home, change)


def remove_name(home: Path, name: str) -> Path | None:
    """Take a model or an alias out of the operator's catalog; None when it has no such name.

    A model's aliases go with it. Raises as `add_model` does.
    """
    own = operator_catalog(home)
    document = located_yaml.load(own, CatalogDocument).value if own.exists() else CatalogDocument()
    if name not in document.aliases and all(spec.id != name for spec in document.models):
        return None

    def change(content: dict[str, Any]) -> None:
        aliases: dict[str, str] = content.get("aliases") or {}
        if name in aliases:
            del aliases[name]
            return
        content["models"] = [model for model in content["models"] if model["id"] != name]
        content["aliases"] = {alias: target for alias, target in aliases.items() if target != name}

    return _edit(home, change)


def add_alias(home: Path, alias: str, target: str) -> Path:
    """Serve the model `target` under the name `alias` too. Raises as `add_model` does."""

    def change(content: dict[str, Any]) -> None:
        content["aliases"] = {**(content.get("aliases") or {}), alias: target}

    return _edit(home, change)


def _edit(home: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Rewrite the operator's catalog, unless the result would not load. One at a time."""
    home.mkdir(parents=True, exist_ok=True)
    folder = os.open(home, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        return _edit_alone(home, change)
    finally:
        os.close(folder)


def _edit_alone(home: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    Catalog.load(home)
    path = operator_catalog(home)
    content: dict[str, Any] = {}
    if path.exists():
        content = yaml.safe_load(path.read_bytes()) or {}
    change(content)
    draft = path.with_name(f"catalog.{os.getpid()}.new")
    try:
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
        draft.write_text(text, encoding="utf-8")
        Catalog.merged(draft)
        os.replace(draft, path)
    except CatalogError as error:
        raise CatalogError(str(error).replace(str(draft), str(path))) from None
    finally:
        draft.unlink(missing_ok=True)
    return path
