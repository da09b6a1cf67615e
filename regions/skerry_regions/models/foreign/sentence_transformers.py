"""What sentence-transformers leaves beside a model that embeds: what its vectors are made by.

`modules.json` lists what a text goes through: the transformer, the pooling, perhaps dense layers
and a norm, each with a folder of its own. `config_sentence_transformers.json` has prompts, texts
that stand before others. Both forms of the pooling's configuration are read: one key for each
mode, and since its version 6 one for all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skerry_regions.models.catalog import INSTRUCTION, Embedding, Pooling
from skerry_regions.models.foreign.json_files import read_json
from skerry_regions.models.problems import UnsupportedModel

Json = dict[str, Any]

PROMPTS = "config_sentence_transformers.json"
_FOLDER = re.compile(r"|[\w-][\w.-]*")  # the model's own, or one below
_KNOWN = {"Transformer", "Pooling", "Dense", "Normalize"}
_POOLINGS: dict[str, Pooling] = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}
_LEGACY = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
}
# Prompts of queries that state an instruction, as Qwen3-Embedding and EmbeddingGemma word it.
_INSTRUCTED = re.compile(r"(Instruct: |task: )(.+?)(\n ?Query: ?| \| query: )", re.DOTALL)


def embedding_of(folder: Path, hidden_size: int) -> Embedding:
    """Return what sentence-transformers would do with a transformer's states; without its files
    their normalised mean. Raises `UnsupportedModel`."""
    modules = modules_of(read_json(folder / "modules.json"), folder)
    kinds = [kind for kind, _ in modules]
    if unknown := set(kinds) - _KNOWN:
        raise UnsupportedModel(f"{folder}: modules.json has {', '.join(sorted(unknown))}")
    place = next((path for kind, path in modules if kind == "Pooling" and path), "1_Pooling")
    stated = read_json(folder / place / "config.json")
    dimensions = hidden_size
    for path in (path for kind, path in modules if kind == "Dense"):
        config = read_json(folder / path / "config.json")
        width = config.get("out_features") if isinstance(config, dict) else None
        if not isinstance(width, int):
            raise UnsupportedModel(f"{folder / path / 'config.json'} does not state out_features")
        dimensions = width
    return Embedding(
        dimensions=dimensions,
        pooling=_pooling(stated, folder / place) if isinstance(stated, dict) else "mean",
        normalize=not kinds or "Normalize" in kinds,
        **_prompts(read_json(folder / PROMPTS), folder),
    )


def modules_of(stated: Any, folder: Path) -> list[tuple[str, str]]:
    """Return kind and folder of each module of a modules.json. Raises `UnsupportedModel`."""
    if stated is None:
        return []
    modules = stated if isinstance(stated, list) else [None]
    found = [
        (str(each.get("type", "")).rpartition(".")[2], str(each.get("path", "")))
        for each in modules
        if isinstance(each, dict)
    ]
    if len(found) != len(modules) or not all(_FOLDER.fullmatch(path) for _, path in found):
        raise UnsupportedModel(
            f"{folder}: modules.json is not a list of modules in folders of its own"
        )
    return found


def dense_files(stated: Any, folder: Path) -> list[str]:
    """Return names of the files of dense layers, below the model's folder."""
    folders = [path for kind, path in modules_of(stated, folder) if kind == "Dense"]
    return [f"{path}/{name}" for path in folders for name in ("config.json", "model.safetensors")]


def _pooling(stated: Json, folder: Path) -> Pooling:
    if stated.get("include_prompt") is False:
        raise UnsupportedModel(f"{folder}: include_prompt false is not supported")
    modes = [key for key, value in stated.items() if key.startswith("pooling_mode_") and value]
    mode = stated.get("pooling_mode", _LEGACY.get(modes[0]) if len(modes) == 1 else modes)
    if not isinstance(mode, str) or mode not in _POOLINGS:
        raise UnsupportedModel(f"{folder}: pooling is {mode!r}, not one of {tuple(_POOLINGS)}")
    return _POOLINGS[mode]


def _prompts(stated: Any, folder: Path) -> dict[str, str]:
    """Return the prompts of an `Embedding`."""
    prompts = stated.get("prompts") if isinstance(stated, dict) else None
    if not isinstance(prompts, dict):
        return {}
    named = {name: text for name, text in prompts.items() if isinstance(text, str)}
    found = {"document_prompt": named.get("document", "")}
    found["text_prompt"] = _default(named, stated.get("default_prompt_name"), folder)
    query = named.get("query", "")
    if INSTRUCTION in query:
        raise UnsupportedModel(f"{folder / PROMPTS}: a prompt contains {INSTRUCTION}")
    if match := _INSTRUCTED.fullmatch(query):
        query, found["instruction"] = f"{match[1]}{INSTRUCTION}{match[3]}", match[2]
    return found | {"query_prompt": query}


def _default(named: Mapping[str, str], name: Any, folder: Path) -> str:
    if name is None:
        return ""
    if name not in named:
        raise UnsupportedModel(f"{folder / PROMPTS}: no prompt is called {name!r}")
    return named[name]
