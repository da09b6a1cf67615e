"""Models of a hub that Skerry knows: where their weights are, and what is known of them.

`hub_models.yaml` beside this has them, with those that are refused and why. An entry is not yet a
model of the catalog: `skerry models pull` resolves it to a commit and to files with their SHA-256,
compares its facts with the repository's, and writes what it found into the operator's catalog. An
entry says itself how far it can be trusted (`verified`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from importlib import resources
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from skerry.errors import ModelNotFound
from skerry_regions.models import located_yaml
from skerry_regions.models.catalog import (
    Capability,
    CatalogError,
    ModelId,
    Price,
    SamplingDefaults,
    Task,
)

RepositoryName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$", max_length=200)]
Quantisation = Annotated[str, Meta(pattern=r"^[a-z0-9_]+$", max_length=40)]
SAFETENSORS = "safetensors"  # as a variant: the weights as their authors published them


class HubModel(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model of a hub."""

    id: ModelId
    weights: RepositoryName  # in safetensors, by the authors
    gguf: RepositoryName | None = None
    default: Quantisation = "q4_k_m"  # of the GGUF files, or safetensors
    revision: Annotated[str, Meta(max_length=100)] = "main"
    model_type: str  # as config.json has it
    task: Task = "text-generation"
    context_window: Annotated[int, Meta(ge=1, le=1 << 24)]  # tokens served, at most the model's
    license: str
    gated: bool = False  # the repository `weights`; GGUF files are often not
    capabilities: tuple[Capability, ...] = ()
    price: Price = Price()
    sampling: SamplingDefaults = SamplingDefaults()
    verified: Literal["none", "config", "digest"] = "none"
    """How the facts were checked: not at all, against config.json, or the files' digests too."""

    def repository(self, variant: str) -> str:
        """Return where a variant's files are."""
        return self.weights if variant == SAFETENSORS or self.gguf is None else self.gguf

    @property
    def usual(self) -> str:
        """Return the variant that is pulled when none is named."""
        return SAFETENSORS if self.gguf is None else self.default


class RefusedModel(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An id of Workers AI that cannot be served."""

    id: ModelId
    reason: str
    instead: ModelId | None = None


class HubDocument(Struct, frozen=True, forbid_unknown_fields=True):
    models: list[HubModel]
    refused: list[RefusedModel]


class HubCatalog:
    """The models of a hub that Skerry knows, by id."""

    def __init__(self, document: HubDocument) -> None:
        self._models = {model.id: model for model in document.models}
        self._refused = {model.id: model for model in document.refused}
        if len({*self._models, *self._refused}) < len(document.models) + len(document.refused):
            raise CatalogError("hub_models.yaml: an id is given twice")

    @classmethod
    def load(cls) -> HubCatalog:
        """Read the packaged file, which takes a tenth of a second. Raises `CatalogError`."""
        data = resources.files("skerry_regions.models").joinpath("hub_models.yaml").read_bytes()
        try:
            return cls(located_yaml.parse(data, "hub_models.yaml", HubDocument).value)
        except located_yaml.YamlError as error:
            raise CatalogError(str(error)) from None

    def resolve(self, id: str) -> HubModel:
        """Raises `ModelNotFound`, for a refused id with the reason."""
        if (refused := self._refused.get(id)) is not None:
            instead = f" Try {refused.instead}." if refused.instead else ""
            raise ModelNotFound(f"{id} is not supported: {refused.reason}.{instead}", param="model")
        if (model := self._models.get(id)) is None:
            near = difflib.get_close_matches(id[:200], self._models, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ModelNotFound(f"No such model: {id[:200]}.{hint}", param="model")
        return model

    @property
    def refused(self) -> list[RefusedModel]:
        return list(self._refused.values())

    def __iter__(self) -> Iterator[HubModel]:
        return iter(self._models.values())

    def __len__(self) -> int:
        return len(self._models)


def as_plain(model: HubModel) -> dict[str, object]:
    """Return an entry's facts, as JSON has them."""
    plain: dict[str, object] = msgspec.to_builtins(model)
    return plain
