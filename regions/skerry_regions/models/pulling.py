"""From a name to a pinned entry of the catalog: `skerry models pull` of what it does not have yet.

    @cf/meta/llama-3.2-1b-instruct[:q8_0]     a model that `hub_models.yaml` knows
    hf:owner/repository[@revision][:file]     any other, a GGUF file or safetensors

The repository is resolved to a commit once. Before the first byte of weights `config.json`, or a
GGUF's header, is looked at, and what the entry claims is compared with it. What comes out names a
commit and every file's SHA-256: the same bytes on every machine from then on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from skerry_regions.models import local_model
from skerry_regions.models.blobs import Blobs
from skerry_regions.models.catalog import ModelFile, ModelSpec, Task
from skerry_regions.models.fetch import HubFiles
from skerry_regions.models.foreign import sentence_transformers
from skerry_regions.models.hub import HubClient, HubFile, Repository
from skerry_regions.models.hub_catalog import SAFETENSORS, HubCatalog, HubModel
from skerry_regions.models.problems import PullError, UnsupportedModel
from skerry_regions.models.sources import Progress

MAX_SMALL: Final = 64 << 20  # bytes of a file that is read into memory
HEAD_BYTES: Final = (1 << 20, 4 << 20, 16 << 20, 64 << 20)  # of a GGUF file, until its header ends
_SMALL: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
    "modules.json",
    "sentence_bert_config.json",
    sentence_transformers.PROMPTS,
    "1_Pooling/config.json",
)
_HF: Final = re.compile(
    r"hf:([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)(?:@([A-Za-z0-9._/-]+))?(?::([A-Za-z0-9._/-]+))?"
)
_PART: Final = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What the engine says of a model. Each raises `UnsupportedModel`."""

    config: Callable[[dict[str, Any], Task], None]  # config.json
    head: Callable[[bytes], bool]  # of a GGUF file; False: its header is longer
    opens: local_model.Check


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """What is to be pulled."""

    id: str  # under which it will be served
    repository: str
    revision: str
    choice: str  # a quantisation, `safetensors`, a file's name, or nothing
    entry: HubModel | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """A model that is pinned, and in what its entry was wrong."""

    spec: ModelSpec
    license: str
    notes: list[str] = field(default_factory=list[str])


def wanted(name: str, known: HubCatalog, *, id: str | None = None) -> PullRequest:
    """Read what a person requested. Raises `ModelNotFound` or `PullError`."""
    if name.startswith("hf:"):
        if (match := _HF.fullmatch(name)) is None:
            raise PullError(f"{name}: must look like hf:owner/repository[@revision][:file]")
        return PullRequest(
            id=id or f"@hf/{match[1]}",
            repository=match[1],
            revision=match[2] or "main",
            choice=match[3] or "",
        )
    plain, _, choice = name.partition(":")
    entry = known.resolve(plain)
    choice = (choice or entry.usual).lower()
    return PullRequest(
        id=id or entry.id,
        repository=entry.repository(choice),
        revision=entry.revision,
        choice=choice,
        entry=entry,
    )


def resolve(
    asked: PullRequest,
    client: HubClient,
    checks: Checks,
    blobs: Blobs,
    folder: Path,
    progress: Progress,
) -> Resolved:
    """Fetch and pin a model; its files are blobs afterwards, and links in the empty `folder`.

    Raises `PullError`, `UnsupportedModel`, `CatalogError` and `OSError`.
    """
    progress(f"asking for {asked.repository}", 0.0)
    repository = client.repository(asked.repository, asked.revision)
    notes = [] if asked.entry is None else _differences(asked.entry, repository)
    weights = _choose(repository, asked.choice)
    small = [] if weights[0].path.endswith(".gguf") else _small_files(repository)
    hashes: dict[str, str] = {}
    for file in small:
        data = client.read(repository.id, repository.commit, file, MAX_SMALL)
        if file.path == "config.json":
            notes += _check_config(asked, data, checks)
        elif file.path == "modules.json":
            for each in _dense_files(repository, data):
                (small if each.path.endswith(".json") else weights).append(each)
        hashes[file.path] = blobs.put(data)
    if not small:
        notes += _check_head(asked, client, repository, weights[0], checks)
    files = HubFiles(client, repository.id, repository.commit, blobs)
    for file in weights:
        if file.sha256 is None:
            raise PullError(f"{repository.id}: {file.path} has no SHA-256 on the hub")
        hashes[file.path] = file.sha256
        name = Path(file.path).name
        files.fetch(file.path, ModelFile(name, file.num_bytes, file.sha256), progress)
    for path, sha256 in hashes.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        blobs.link(sha256, target)
    root = folder if small else folder / weights[0].path
    inner = str(Path(weights[0].path).parent)
    beside = {
        str(Path(p).relative_to(inner)): h
        for p, h in hashes.items()
        if Path(p).is_relative_to(inner)
    }
    spec = local_model.describe(root, asked.id, check=checks.opens, hashes=beside)
    source = f"hub:{repository.id}@{repository.commit}" + (f"/{inner}" if inner != "." else "")
    notes += _other_sampling(asked.entry, spec)
    return Resolved(_filled(spec, asked.entry, source), repository.license, notes)


def _filled(spec: ModelSpec, entry: HubModel | None, source: str) -> ModelSpec:
    """Return the entry's facts, where the files do not say otherwise."""
    if entry is None:
        return msgspec.structs.replace(spec, source=source)
    return msgspec.structs.replace(
        spec,
        source=source,
        context_window=min(spec.context_window, entry.context_window),
        capabilities=entry.capabilities,
        price=entry.price,
        sampling=spec.sampling if spec.sampling.stated() else entry.sampling,
    )


def _other_sampling(entry: HubModel | None, spec: ModelSpec) -> list[str]:
    stated = spec.sampling.stated()
    if entry is None or not stated or stated == entry.sampling.stated():
        return []
    return [f"sampling: {stated}, not {entry.sampling.stated()} as our catalog has it"]


def _choose(repository: Repository, choice: str) -> list[HubFile]:
    """Return the weights that were requested. Raises `PullError`, with what there is."""
    ggufs = [file for file in repository.files if file.path.lower().endswith(".gguf")]
    whole = [file for file in ggufs if not _PART.search(file.path)]
    tensors = [file for file in repository.files if re.fullmatch(r"[^/]+\.safetensors", file.path)]
    if exact := repository.find(choice):
        chosen = [exact]
    elif choice == SAFETENSORS or (not choice and tensors and not ggufs):
        chosen = tensors
    else:
        named = re.compile(rf"(?:^|[-._/]){re.escape(choice or 'q4_k_m')}\.gguf$", re.IGNORECASE)
        chosen = [file for file in whole if named.search(file.path)]
        if not choice and not chosen and len(whole) == 1:
            chosen = whole
    if not chosen or (len(chosen) > 1 and chosen[0].path.endswith(".gguf")):
        offered = ", ".join(file.path for file in [*whole, *tensors][:30]) or "neither"
        split = " (files in parts are not supported)" if len(whole) < len(ggufs) else ""
        raise PullError(
            f"{repository.id} has no single {choice or 'q4_k_m'}{split}: it has {offered}. Name "
            f"one: `skerry models pull hf:{repository.id}:FILE`."
        )
    if not chosen[0].path.lower().endswith((".gguf", ".safetensors")):
        raise PullError(f"{chosen[0].path} is neither a GGUF file nor safetensors")
    return chosen


def _small_files(repository: Repository) -> list[HubFile]:
    found = [file for name in _SMALL if (file := repository.find(name)) is not None]
    if not any(file.path == "config.json" for file in found):
        raise UnsupportedModel(f"{repository.id} has no config.json")
    if any(file.path == "tokenizer.json" for file in found):
        found = [file for file in found if file.path != "tokenizer.model"]
    return found


def _dense_files(repository: Repository, modules: bytes) -> list[HubFile]:
    """Return the files of the dense layers that a modules.json lists."""
    try:
        stated = json.loads(modules)
    except (ValueError, RecursionError):
        raise UnsupportedModel(f"{repository.id}: modules.json is not JSON") from None
    names = sentence_transformers.dense_files(stated, Path(repository.id))
    found = [(name, repository.find(name)) for name in names]
    if lacking := [name for name, file in found if file is None]:
        raise UnsupportedModel(f"{repository.id}: modules.json wants {', '.join(lacking)}")
    return [file for _, file in found if file is not None]


def _check_config(asked: PullRequest, data: bytes, checks: Checks) -> list[str]:
    """Refuse what the engine cannot open; what the entry says otherwise than config.json."""
    try:
        config = json.loads(data)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise UnsupportedModel(f"{asked.repository}: config.json is not a JSON object")
    try:
        checks.config(config, "text-generation" if asked.entry is None else asked.entry.task)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{asked.repository}: {error}") from None
    return _compare(asked.entry, config.get("model_type"), config.get("max_position_embeddings"))


def _check_head(
    asked: PullRequest, client: HubClient, repository: Repository, file: HubFile, checks: Checks
) -> list[str]:
    """Refuse what the engine cannot open, by the header alone."""
    location = client.locate(repository.id, repository.commit, file.path)
    for size in HEAD_BYTES:
        head = client.head(location, min(size, file.num_bytes))
        try:
            if checks.head(head):
                return []
        except UnsupportedModel as error:
            raise UnsupportedModel(f"{asked.repository}: {file.path}: {error}") from None
        if size >= file.num_bytes:
            break
    raise UnsupportedModel(f"{asked.repository}: {file.path} is cut short, or has no end of header")


def _differences(entry: HubModel, repository: Repository) -> list[str]:
    """Return in what an entry of ours is wrong of a repository."""
    notes = []
    if repository.license and repository.license != entry.license:
        notes.append(f"license: {repository.license}, not {entry.license} as our catalog has it")
    if repository.id == entry.weights and bool(repository.gated) != entry.gated:
        notes.append(f"gated: {bool(repository.gated)}, not {entry.gated} as our catalog has it")
    return notes


def _compare(entry: HubModel | None, model_type: object, context: object) -> list[str]:
    if entry is None:
        return []
    notes = []
    if model_type != entry.model_type:
        notes.append(f"model_type: {model_type}, not {entry.model_type} as our catalog has it")
    if isinstance(context, int) and context < entry.context_window:
        notes.append(f"context: {context} tokens, not {entry.context_window} as our catalog has it")
    return notes
