"""A catalog entry for model files of one's own: a GGUF file, or a safetensors folder.

A folder with a BERT-like encoder becomes a model that embeds texts, and so does one with a decoder
beside which sentence-transformers has left a `modules.json`; how it embeds is read from there. One
whose architecture is `…ForSequenceClassification` becomes a model
that classifies or, with one label, ranks.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from skerry_regions.models.catalog import (
    CatalogError,
    Classification,
    Embedding,
    ModelFile,
    ModelSpec,
    SamplingDefaults,
    Task,
)
from skerry_regions.models.foreign import sentence_transformers
from skerry_regions.models.foreign.gguf_header import GGUFError, read_metadata
from skerry_regions.models.foreign.json_files import read_json
from skerry_regions.models.integrity import hash_file
from skerry_regions.models.problems import UnsupportedModel
from skerry_regions.models.sources import Progress

Json = dict[str, Any]

Check = Callable[[Path, Task], None]
"""Opens a model's file or folder as what it is for. Raises `UnsupportedModel`."""

_NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json")
_NEEDED_BYENCODERS = ("config.json", "tokenizer.json")
ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert")  # config.json's `model_type`
EMBEDDERS = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")  # decoders that may embed
_COUNT_PADDING = ("roberta", "xlm-roberta")  # positions begin behind the padding's id
_CLASSIFIER = "ForSequenceClassification"
_DEFAULT_LABELS = {"0": "LABEL_0", "1": "LABEL_1"}  # which transformers does not write down
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
        if not config or not (folder / "modules.json").is_file():  # of sentence-transformers
            return "text-generation"
        if config.get("model_type") not in EMBEDDERS:
            raise UnsupportedModel(
                f"{folder}: model_type {config.get('model_type')!r} does not embed here, only "
                f"{ENCODERS + EMBEDDERS} do"
            )
        return "text-embeddings"
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
        stated = read_json(path / "generation_config.json")
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
    pooling = header.get(f"{header.get('general.architecture')}.pooling_type", 0)
    if pooling != 0:
        raise UnsupportedModel(
            f"{path.name} embeds (pooling_type {pooling}): models that embed are read from "
            "safetensors"
        )
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
    weights = sorted(file.name for file in folder.glob("*.safetensors"))
    if config["model_type"] in ENCODERS:
        weights = [name for name in weights if name == "model.safetensors"]
    if not weights:
        missing.append("model.safetensors")
    if missing:
        raise UnsupportedModel(f"{folder} does not read texts: it has no {', '.join(missing)}")
    dense = sentence_transformers.dense_files(read_json(folder / "modules.json"), folder)
    if lacking := [name for name in dense if not (folder / name).is_file()]:
        raise UnsupportedModel(f"{folder}: modules.json wants {', '.join(lacking)}")
    names = [*_NEEDED_BYENCODERS, *weights, *(["modules.json", *dense] if dense else [])]
    context = _context(folder, config)
    if config["model_type"] in _COUNT_PADDING:
        padding = config.get("pad_token_id")
        context -= 1 + (padding if isinstance(padding, int) else 0)
    # Since its version 6 sentence-transformers states the length with the tokenizer.
    limits = [
        stated.get(key)
        for name, key in (
            ("sentence_bert_config.json", "max_seq_length"),
            ("tokenizer_config.json", "model_max_length"),
        )
        if isinstance(stated := read_json(folder / name), dict)
    ]
    limit = next((each for each in limits if isinstance(each, int) and each > 0), context)
    shorter = min(limit, context)
    return names, shorter, folder.name


def _embedding(folder: Path, config: Json) -> Embedding:
    hidden_size = config.get("hidden_size", config.get("dim"))
    if not isinstance(hidden_size, int):
        raise UnsupportedModel(f"{folder / 'config.json'} does not state hidden_size")
    return sentence_transformers.embedding_of(folder, hidden_size)


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
    content = read_json(path)
    if not isinstance(content, dict):
        raise UnsupportedModel(f"{path} is not a JSON object")
    return content


def _context(folder: Path, config: Json) -> int:
    context = config.get("max_position_embeddings")
    if not isinstance(context, int):
        raise UnsupportedModel(f"{folder / 'config.json'} does not state max_position_embeddings")
    return context
