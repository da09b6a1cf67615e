"""The catalog: which models exist, where their files come from, what they can do and cost.

Two YAML files of one form are merged: the packaged `catalog.yaml` and the operator's own under
`SKERRY_HOME`, whose entries replace packaged ones of the same id.

    models:
      - id: "@cf/me/my-model"
        source: file:/srv/models                  # or hub:org/name@rev, pypi:name==version/folder
        files: [{name: my-model.gguf, size: 98362432, sha256: "b179…"}]
        context_window: 8192
        sampling: {temperature: 0.7, top_p: 0.9}  # of requests that do not say
        aliases: ["@cf/meta/llama-3.1-8b-instruct"]
        price: {prompt: 0.05, cached: 0.01, output: 0.20}
    aliases:                                      # another name for a model of either file
      "@cf/meta/llama-3.2-1b-instruct": "@cf/me/my-model"
    default_max_tokens: 1024                      # of models that state none themselves

Every mistake is a `CatalogError` that names file, line and key.
"""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from skerry.errors import ModelNotFound
from skerry_regions.models import located_yaml

Task = Literal["text-generation", "text-embeddings", "text-classification"]
Pooling = Literal["mean", "cls", "max", "last"]
Capability = Literal[
    "async_queue", "function_calling", "json_schema", "lora", "reasoning", "vision"
]
ModelId = Annotated[
    str,
    Meta(max_length=200, pattern=r"^@?[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$"),
]
Dollars = Annotated[float, Meta(ge=0.0, le=1e6)]  # US$ per million tokens
MaxTokens = Annotated[int, Meta(ge=1, le=1 << 20)]


MAX_FILE_SIZE = 1 << 43  # bytes
MAX_INSTRUCTION = 2000  # characters
INSTRUCTION = "{instruction}"
Prompt = Annotated[str, Meta(max_length=MAX_INSTRUCTION)]

_NAME = r"[^/\\\x00-\x1f.][^/\\\x00-\x1f]*"
_FILE_NAME = rf"^{_NAME}(/{_NAME})?$"


class CatalogError(ValueError):
    """A catalog file that cannot be used; the message names file, line and key."""


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """US$ per million tokens of each phase: computed prompt, cached prompt, output; and of what is
    computed and kept cached for a time: less than an hour, or more. Those are by default what
    upstream's are to the prompt's."""

    prompt: Dollars = 0.0
    cached: Dollars = 0.0
    output: Dollars = 0.0
    written: Dollars | None = None
    written_long: Dollars | None = None

    @property
    def writes(self) -> tuple[float, float]:
        """Return the prices of what is kept for less than an hour, and for more."""
        short = 1.25 * self.prompt if self.written is None else self.written
        return short, 2 * self.prompt if self.written_long is None else self.written_long


class ModelFile(Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a model, under its source or in a folder there; `size` in bytes, `sha256` in
    lower-case hex."""

    name: Annotated[str, Meta(max_length=200, pattern=_FILE_NAME)]
    size: Annotated[int, Meta(ge=1, le=MAX_FILE_SIZE)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class Embedding(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What vectors a model of the task text-embeddings makes."""

    dimensions: Annotated[int, Meta(ge=1, le=4096)]
    pooling: Pooling = "mean"  # where the request names none
    normalize: bool = True  # to length 1
    query_prompt: Prompt = ""  # before a query; `{instruction}` in it is a request's, or the next
    instruction: Prompt = ""
    document_prompt: Prompt = ""  # before what a query searches
    text_prompt: Prompt = ""  # before a text that is neither

    @property
    def takes_instruction(self) -> bool:
        return INSTRUCTION in self.query_prompt

    def query_prefix(self, instruction: str | None) -> str:
        """Return what stands before a query, with the request's instruction or the model's."""
        return self.query_prompt.replace(INSTRUCTION, instruction or self.instruction)


class Classification(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a model of the task text-classification says of a text."""

    labels: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...],
        Meta(min_length=1, max_length=4096),
    ]
    """In the order of the model's scores. With one alone, the model ranks contexts by a query."""
    multi_label: bool = False  # a text may have several: scores do not add up to 1

    @property
    def ranks(self) -> bool:
        return len(self.labels) == 1

    @property
    def is_independent(self) -> bool:
        """Return whether each label has a score of its own: a sigmoid. Otherwise they share 1: a
        softmax."""
        return self.multi_label or self.ranks


class SamplingDefaults(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a request is sampled with where it says nothing; None: as its dialect has it."""

    temperature: Annotated[float, Meta(ge=0.0, le=5.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=1, le=1000)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    typical_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=2.0)] | None = None

    def stated(self) -> dict[str, float]:
        """Return those that are stated, by name."""
        return {
            name: value for name, value in msgspec.structs.asdict(self).items() if value is not None
        }

    def resolved(self, temperature: float) -> dict[str, float]:
        """Return a value of each: what the model does not state is neutral, and `temperature`."""
        neutral = {"temperature": temperature, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
        neutral |= {"typical_p": 1.0, "repetition_penalty": 1.0}
        return neutral | self.stated()


class ModelSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model as the catalog states it."""

    id: ModelId
    source: Annotated[str, Meta(max_length=4096, pattern=r"^(pypi|file|hub):.+")]
    files: Annotated[tuple[ModelFile, ...], Meta(min_length=1, max_length=1000)]
    context_window: Annotated[int, Meta(ge=1, le=1 << 24)]
    """Tokens: of prompt and output together, or of a text to embed or to classify."""
    aliases: tuple[ModelId, ...] = ()
    task: Task = "text-generation"
    description: Annotated[str, Meta(max_length=4000)] = ""
    capabilities: tuple[Capability, ...] = ()
    price: Price = Price()
    answer: Literal["native", "chat"] = "native"  # form of the answer of `/ai/run`
    created: datetime.date | None = None
    embedding: Embedding | None = None  # of models that embed
    classification: Classification | None = None  # of models that classify or rank
    default_max_tokens: MaxTokens | None = None  # of an answer whose request states no limit
    sampling: SamplingDefaults = SamplingDefaults()
    chat_template: Annotated[str, Meta(max_length=64 << 10)] | None = None
    """Jinja source, in place of the template in the model's files."""

    @property
    def is_encoder(self) -> bool:
        """Return whether it reads texts and makes none."""
        return self.task != "text-generation"

    @property
    def size(self) -> int:
        """Return bytes of all files."""
        return sum(file.size for file in self.files)


class CatalogDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """One catalog file: models, and further names for models of either file."""

    models: list[ModelSpec] = []
    aliases: dict[ModelId, ModelId] = {}
    default_max_tokens: MaxTokens | None = None  # of all models without their own


class Catalog:
    """An immutable set of models, found by id or alias."""

    def __init__(self, models: Iterable[ModelSpec]) -> None:
        """Raises `CatalogError` when two models claim one name."""
        self._models: dict[str, ModelSpec] = {}
        self.names: dict[str, ModelSpec] = {}  # by id and alias
        for spec in models:
            if (spec.task == "text-embeddings") != (spec.embedding is not None):
                raise CatalogError(f"{spec.id}: `embedding` belongs to the task text-embeddings")
            if (spec.task == "text-classification") != (spec.classification is not None):
                raise CatalogError(
                    f"{spec.id}: `classification` belongs to the task text-classification"
                )
            self._models[spec.id] = spec
            for name in (spec.id, *spec.aliases):
                if name in self.names:
                    other = self.names[name].id
                    raise CatalogError(f"{spec.id} and {other} both claim the name {name}")
                self.names[name] = spec

    @classmethod
    def load(cls, home: Path | None = None) -> Catalog:
        """Return the packaged catalog, and that of `home` (SKERRY_HOME) over it when it has one.

        Raises `CatalogError`.
        """
        own = operator_catalog(home) if home is not None else None
        return cls.merged(own if own is not None and own.exists() else None)

    @classmethod
    def merged(cls, own: Path | None) -> Catalog:
        try:
            data = resources.files("skerry_regions.models").joinpath("catalog.yaml").read_bytes()
            packaged = located_yaml.parse(data, "catalog.yaml", CatalogDocument).value
            document = located_yaml.load(own, CatalogDocument).value if own else CatalogDocument()
        except located_yaml.YamlError as error:
            raise CatalogError(str(error)) from None
        models: dict[str, ModelSpec] = {}
        for each, name in ((packaged, "catalog.yaml"), (document, str(own))):
            own_ids: set[str] = set()
            for spec in each.models:
                if spec.id in own_ids:
                    raise CatalogError(f"{name}: models: {spec.id} is given twice")
                own_ids.add(spec.id)
                models[spec.id] = spec
        for alias, target in {**packaged.aliases, **document.aliases}.items():
            if target not in models:
                raise CatalogError(f"{own}: aliases: {alias} names {target}, which does not exist")
            spec = models[target]
            models[target] = msgspec.structs.replace(spec, aliases=(*spec.aliases, alias))
        if (limit := document.default_max_tokens) is not None:
            for spec in models.values():
                if spec.default_max_tokens is None:
                    models[spec.id] = msgspec.structs.replace(spec, default_max_tokens=limit)
        return cls(models.values())

    def resolve(self, name: str) -> ModelSpec:
        """Return the model of an id or alias. Raises `ModelNotFound`."""
        if spec := self.names.get(name):
            return spec
        shown = name if len(name) <= 200 else name[:200] + "…"
        near = difflib.get_close_matches(shown, self.names, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ModelNotFound(f"No such model: {shown}.{hint}", param="model")

    def __iter__(self) -> Iterator[ModelSpec]:
        return iter(self._models.values())

    def __len__(self) -> int:
        return len(self._models)


def operator_catalog(home: Path) -> Path:
    """Return where an operator's own models are written."""
    return home / "catalog.yaml"


def packaged_ids() -> frozenset[str]:
    """Return the ids of the models that come with Skerry."""
    return frozenset(spec.id for spec in Catalog.load())


def is_packaged(spec: ModelSpec) -> bool:
    """Return whether files and chat template are those of the packaged entry of the same id."""
    stated = (spec.id, spec.files, spec.chat_template)
    return any((each.id, each.files, each.chat_template) == stated for each in Catalog.load())
