"""A catalog entry for model files of one's own: a GGUF file, or a safetensors folder."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from skerry_regions.catalog import CatalogError, ModelFile, ModelSpec
from skerry_regions.gguf_header import GGUFError, read_metadata
from skerry_regions.sources import Progress
from skerry_regions.store import hash_file
from skerry_regions.tokenizer_files import MAX_JSON_SIZE, UnsupportedModel

_NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json")
_OPTIONAL = ("generation_config.json", "chat_template.jinja", "model.safetensors.index.json")


def describe(
    path: Path,
    model_id: str,
    *,
    aliases: Sequence[str] = (),
    created: datetime.date | None = None,
    progress: Progress | None = None,
) -> ModelSpec:
    """What the catalog must say to serve `path` in place as `model_id`. Hashes every file.

    Raises `UnsupportedModel` for files of another kind, `CatalogError` for an id or file name that
    the catalog does not take, and `OSError`.
    """
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    if path.is_dir():
        names, context, description = _safetensors(folder)
    else:
        names, context, description = _gguf(path)
    files = tuple(
        ModelFile(name, (folder / name).stat().st_size, hash_file(folder / name, progress))
        for name in names
    )
    spec = ModelSpec(
        id=model_id,
        aliases=tuple(aliases),
        description=description,
        created=created,
        source=f"file:{folder}",
        files=files,
        context_window=context,
    )
    try:
        return msgspec.convert(msgspec.to_builtins(spec), ModelSpec)
    except msgspec.ValidationError as error:
        raise CatalogError(f"{model_id}: {error}") from None


def _gguf(path: Path) -> tuple[list[str], int, str]:
    try:
        header = read_metadata(path)
    except GGUFError as error:
        raise UnsupportedModel(str(error)) from None
    context = header.get(f"{header.get('general.architecture')}.context_length")
    if not isinstance(context, int):
        raise UnsupportedModel(f"{path.name} does not state its context length")
    name = header.get("general.name")
    return [path.name], context, name if isinstance(name, str) else ""


def _safetensors(folder: Path) -> tuple[list[str], int, str]:
    weights = sorted(file.name for file in folder.glob("*.safetensors"))
    missing = [name for name in _NEEDED if not (folder / name).is_file()]
    if not weights or missing:
        lacking = ", ".join(missing) or "*.safetensors"
        raise UnsupportedModel(f"{folder} is not a model: it has no {lacking}")
    config_file = folder / "config.json"
    if config_file.stat().st_size > MAX_JSON_SIZE:
        raise UnsupportedModel(f"{config_file} is too large")
    try:
        context = json.loads(config_file.read_bytes())["max_position_embeddings"]
    except (ValueError, KeyError, TypeError, RecursionError):
        context = None
    if not isinstance(context, int):
        raise UnsupportedModel(f"{config_file} does not state max_position_embeddings")
    optional = [name for name in _OPTIONAL if (folder / name).is_file()]
    return [*_NEEDED, *optional, *weights], context, folder.name
