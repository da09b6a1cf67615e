"""Changes to the operator's catalog: models and names put in and taken out, or nothing changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from skerry_regions.models import located_yaml
from skerry_regions.models.catalog import (
    Catalog,
    CatalogDocument,
    CatalogError,
    ModelSpec,
    operator_catalog,
)


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
    """Rewrite the operator's catalog, unless the result would not load."""
    Catalog.load(home)
    path = operator_catalog(home)
    content: dict[str, Any] = {}
    if path.exists():
        content = yaml.safe_load(path.read_bytes()) or {}
    change(content)
    home.mkdir(parents=True, exist_ok=True)
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
