"""Everything that is wanted at one moment: an immutable picture, with what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from skerry_regions.control.resources import (
    API_TOKEN,
    DEPLOYMENT,
    EDGE_NODE,
    POOL,
    REGION,
    ApiTokenSpec,
    DeploymentSpec,
    EdgeNodeSpec,
    Kind,
    PoolSpec,
    RegionSpec,
    Spec,
)

SpecT = TypeVar("SpecT", bound=Spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One resource as it is stored. Times are Unix seconds."""

    kind: Kind
    id: str
    spec: Spec
    revision: int
    created_at: float
    updated_at: float
    deleting: bool = False

    @property
    def etag(self) -> str:
        return str(self.revision)


class Desired:
    """Records by kind and id. `revision` is that of the last write."""

    def __init__(self, revision: int, records: Mapping[tuple[str, str], Record]) -> None:
        self.revision = revision
        self.records = MappingProxyType(records)

    def get(self, kind: Kind, id: str) -> Record | None:
        return self.records.get((kind.name, id))

    def of(self, kind: Kind) -> list[Record]:
        """By id."""
        found = (record for record in self.records.values() if record.kind is kind)
        return sorted(found, key=lambda record: record.id)

    def regions(self) -> dict[str, RegionSpec]:
        return dict(self._specs(REGION, RegionSpec))

    def edge_nodes(self) -> dict[str, EdgeNodeSpec]:
        return dict(self._specs(EDGE_NODE, EdgeNodeSpec))

    def pools(self) -> dict[str, PoolSpec]:
        return dict(self._specs(POOL, PoolSpec))

    def deployments(self) -> dict[str, DeploymentSpec]:
        return dict(self._specs(DEPLOYMENT, DeploymentSpec))

    def api_tokens(self) -> dict[str, ApiTokenSpec]:
        return dict(self._specs(API_TOKEN, ApiTokenSpec))

    def is_deleting(self, kind: Kind, id: str) -> bool:
        record = self.get(kind, id)
        return record is not None and record.deleting

    def deployment_of(self, pool: str) -> str | None:
        """The deployment that names this pool; at most one does."""
        for id, deployment in self.deployments().items():
            if pool in deployment.pools and not self.is_deleting(DEPLOYMENT, id):
                return id
        return None

    def model_of(self, pool: str) -> str | None:
        """The model that its nodes load: its deployment's, else its own."""
        if (deployment := self.deployment_of(pool)) is not None:
            return self.deployments()[deployment].model
        spec = self.pools().get(pool)
        return spec.model if spec is not None else None

    def _specs(self, kind: Kind, type_: type[SpecT]) -> Iterator[tuple[str, SpecT]]:
        for record in self.of(kind):
            if isinstance(record.spec, type_):
                yield record.id, record.spec
