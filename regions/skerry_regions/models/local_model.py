"""A catalog entry for model files of one's own: a GGUF file, or a safetensors folder.

A folder with a BERT-like encoder becomes a model that embeds texts; how, is read from what
sentence-transformers leaves beside it: `modules.json`, `1_Pooling/config.json` and
`sentence_bert_config.json`. One whose architecture is `…ForSequenceClassification` becomes a model
that classifies or, with one label, ranks.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import orjson

from skerry_regions.models.catalog import (
    CatalogError,
    Classification,
    Embedding,
    ModelFile,
    ModelSpec,
    Pooling,
    SamplingDefaults,
    Task,
)
from skerry_regions.models.foreign.gguf_header import GGUFError, read_metadata
from skerry_regions.models.integrity import hash_file
from skerry_regions.models.problems import UnsupportedModel
from skerry_regions.models.sources import Progress
from skerry_regions.models.tokenizer_files import MAX_JSON_SIZE

Json = dict[str, Any]

Check = Callable[[Path, Task], None]
"""Opens a model's file or folder as what it is for. Raises `UnsupportedModel`."""

_NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json")
_NEEDED_BYENCODERS = ("config.json", "tokenizer.json", "model.safetensors")
ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert")  # config.json's `model_type`
_COUNT_PADDING = ("roberta", "xlm-roberta")  # positions begin behind the padding's id
_CLASSIFIER = "ForSequenceClassification"
_DEFAULT_LABELS = {"0": "LABEL_0", "1": "LABEL_1"}  # which transformers does not write down
_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
_IN_GGUF = (  # `general.sampling.…`
    ("temperature", "temp"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("repetition_penalty", "penalty_repeat"),
)
_OPTIONAL = ("generation_config.json", "chat_template.jinja", "model.safetensors.index.json")


def describe(
    path: Path,
    model_id: str,
    *,
    aliases: Sequence[str] = (),
    created: datetime.date | None = None,
    progress: Progress | None = None,
    check: Check = lambda weights, task: None,
    hashes: Mapping[str, str] = MappingProxyType({}),
) -> ModelSpec:
    """Return what the catalog must say to serve `path` in place as `model_id`.

    `check` looks at the weights before every file is hashed, except those whose SHA-256 is in
    `hashes`, by name. Raises `UnsupportedModel` for files of
    another kind, `CatalogError` for an id or file name that the catalog does not take, and
    `OSError`.
    """
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    config = _config(folder) if path.is_dir() else {}
    task = _task(folder, config)
    check(path.resolve(), task)
    embedding: Embedding | None = None
    classification: Classification | None = None
    if not path.is_dir():
        names, context, description = _gguf(path)
    elif task == "text-generation":
        names, context, description = _safetensors(folder, config)
    else:
        names, context, description = _encoder(folder, config)
        if task == "text-classification":
            classification = _classification(folder, config)
        else:
            embedding = _embedding(folder, config)
    files = tuple(
        ModelFile(
            name,
            (folder / name).stat().st_size,
            hashes.get(name) or hash_file(folder / name, progress),
        )
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
        task=task,
        embedding=embedding,
        classification=classification,
        sampling=_sampling(path) if task == "text-generation" else SamplingDefaults(),
    )
    try:
        return msgspec.convert(msgspec.to_builtins(spec), ModelSpec)
    except msgspec.ValidationError as error:
        raise CatalogError(f"{model_id}: {error}") from None


def _task(folder: Path, config: Json) -> Task:
    if config.get("model_type") not in ENCODERS:
        if config and (folder / "modules.json").is_file():  # of sentence-transformers
            raise UnsupportedModel(
                f"{folder}: model_type {config.get('model_type')!r} does not embed here, only "
                f"{ENCODERS} do"
            )
        return "text-generation"
    return "text-classification" if _classifies(config) else "text-embeddings"


def sampling_of(stated: Mapping[str, Any]) -> SamplingDefaults:
    """Return what of `stated`, by transformers' names, is a value that requests may have too."""
    kept = {}
    for name in SamplingDefaults.__struct_fields__:
        with contextlib.suppress(msgspec.ValidationError):
            kept[name] = getattr(msgspec.convert({name: stated.get(name)}, SamplingDefaults), name)
    return SamplingDefaults(**kept)


def _sampling(path: Path) -> SamplingDefaults:
    """Return the defaults that a model's authors state beside or in its weights."""
    if path.is_dir():
        stated = _read_optional(path / "generation_config.json")
        return sampling_of(stated if isinstance(stated, dict) else {})
    header = read_metadata(path)
    return sampling_of({ours: header.get(f"general.sampling.{key}") for ours, key in _IN_GGUF})


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


def _safetensors(folder: Path, config: Json) -> tuple[list[str], int, str]:
    weights = sorted(file.name for file in folder.glob("*.safetensors"))
    missing = [name for name in _NEEDED if not (folder / name).is_file()]
    needed = list[str](_NEEDED)
    if "tokenizer.json" in missing and (folder / "tokenizer.model").is_file():
        missing.remove("tokenizer.json")
        needed[needed.index("tokenizer.json")] = "tokenizer.model"
    if not weights or missing:
        lacking = ", ".join(missing) or "*.safetensors"
        raise UnsupportedModel(f"{folder} is not a model: it has no {lacking}")
    optional = [name for name in _OPTIONAL if (folder / name).is_file()]
    return [*needed, *optional, *weights], _context(folder, config), folder.name


def _encoder(folder: Path, config: Json) -> tuple[list[str], int, str]:
    missing = [name for name in _NEEDED_BYENCODERS if not (folder / name).is_file()]
    if missing:
        raise UnsupportedModel(f"{folder} is not an encoder: it has no {', '.join(missing)}")
    context = _context(folder, config)
    if config["model_type"] in _COUNT_PADDING:
        padding = config.get("pad_token_id")
        context -= 1 + (padding if isinstance(padding, int) else 0)
    stated = _read_optional(folder / "sentence_bert_config.json")
    limit = stated.get("max_seq_length") if isinstance(stated, dict) else None
    shorter = min(limit, context) if isinstance(limit, int) else context
    return list(_NEEDED_BYENCODERS), shorter, folder.name


def _embedding(folder: Path, config: Json) -> Embedding:
    """Return what sentence-transformers would do with the encoder's states; else their normalised
    mean."""
    modules = _read_optional(folder / "modules.json")
    stated = _read_optional(folder / "1_Pooling" / "config.json")
    kinds = [
        str(module.get("type", "")).rpartition(".")[2]
        for module in (modules if isinstance(modules, list) else [])
        if isinstance(module, dict)
    ]
    if unknown := set(kinds) - {"Transformer", "Pooling", "Normalize"}:
        raise UnsupportedModel(f"{folder}: modules.json has {', '.join(sorted(unknown))}")
    pooling: Pooling = "mean"
    if isinstance(stated, dict):
        modes = {key for key, value in stated.items() if key in _POOLINGS and value is True}
        others = {key for key, value in stated.items() if key.startswith("pooling_mode_") and value}
        if len(modes) != 1 or others != modes:
            raise UnsupportedModel(f"{folder}: 1_Pooling is not one of mean, cls and max")
        pooling = _POOLINGS[modes.pop()]
    dimensions = config.get("hidden_size", config.get("dim"))
    if not isinstance(dimensions, int):
        raise UnsupportedModel(f"{folder / 'config.json'} does not state hidden_size")
    return Embedding(
        dimensions=dimensions, pooling=pooling, normalize=not kinds or "Normalize" in kinds
    )


def _classifies(config: Json) -> bool:
    architectures = config.get("architectures")
    return isinstance(architectures, list) and any(
        isinstance(name, str) and name.endswith(_CLASSIFIER) for name in architectures
    )


def _classification(folder: Path, config: Json) -> Classification:
    """Return labels in the order of their numbers, as transformers' `id2label` has them."""
    names = config.get("id2label", _DEFAULT_LABELS)
    if not isinstance(names, dict) or set(names) != {str(n) for n in range(len(names))}:
        raise UnsupportedModel(f"{folder / 'config.json'}: id2label does not number labels from 0")
    labels = tuple(str(names[str(number)]) for number in range(len(names)))
    kind = config.get("problem_type")
    if kind == "regression" and len(labels) > 1:
        raise UnsupportedModel(f"{folder}: a regression over {len(labels)} values")
    return Classification(labels=labels, multi_label=kind == "multi_label_classification")


def _config(folder: Path) -> Json:
    path = folder / "config.json"
    if not path.is_file():
        raise UnsupportedModel(f"{folder} is not a model: it has no config.json")
    content = _read_optional(path)
    if not isinstance(content, dict):
        raise UnsupportedModel(f"{path} is not a JSON object")
    return content


def _context(folder: Path, config: Json) -> int:
    context = config.get("max_position_embeddings")
    if not isinstance(context, int):
        raise UnsupportedModel(f"{folder / 'config.json'} does not state max_position_embeddings")
    return context


def _read_optional(path: Path) -> Any:
    """Return the content of a JSON file; None when it is not there. Raises `UnsupportedModel`."""
    try:
        if path.stat().st_size > MAX_JSON_SIZE:
            raise UnsupportedModel(f"{path} is too large")
        return orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{path} is not JSON: {error}") from None
