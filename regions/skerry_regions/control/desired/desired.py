"""Everything that is wanted at one moment: an immutable picture, with what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from skerry_regions.control.desired.resources import (
    API_TOKEN,
    DEPLOYMENT,
    DNS_RECORD,
    DNS_ZONE,
    EDGE_NODE,
    POOL,
    REGION,
    ROUTING,
    ApiTokenSpec,
    DeploymentSpec,
    EdgeNodeSpec,
    PoolSpec,
    RegionSpec,
    ResourceKind,
    RoutingSpec,
    Spec,
)
from skerry_regions.control.dns.specs import DnsRecordSpec, DnsZoneSpec
from skerry_regions.zones import GLOBAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One resource as it is stored. Times are Unix seconds."""

    kind: ResourceKind
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
        self._by_type: dict[str, Mapping[str, Spec]] = {}  # specs by id, of the kinds requested

    def get(self, kind: ResourceKind, id: str) -> Record | None:
        return self.records.get((kind.name, id))

    def of(self, kind: ResourceKind) -> list[Record]:
        """Return the records by id."""
        return list(self._by_kind.get(kind.name, {}).values())

    def regions(self) -> Mapping[str, RegionSpec]:
        return self._specs(REGION)

    def residency_of(self, region: str) -> str:
        """Return the zone of a region's data; where there is no such region, that of all."""
        spec = self.regions().get(region)
        return spec.residency if spec is not None else GLOBAL

    def edge_nodes(self) -> Mapping[str, EdgeNodeSpec]:
        return self._specs(EDGE_NODE)

    def pools(self) -> Mapping[str, PoolSpec]:
        return self._specs(POOL)

    def deployments(self) -> Mapping[str, DeploymentSpec]:
        return self._specs(DEPLOYMENT)

    def routing(self) -> RoutingSpec:
        """Return how requests find their way; that of nothing written, where nothing is."""
        specs: Mapping[str, RoutingSpec] = self._specs(ROUTING)
        return next(iter(specs.values()), RoutingSpec())

    def api_tokens(self) -> Mapping[str, ApiTokenSpec]:
        return self._specs(API_TOKEN)

    def dns_zones(self) -> Mapping[str, DnsZoneSpec]:
        return self._specs(DNS_ZONE)

    def dns_records(self, zone: str) -> Mapping[str, DnsRecordSpec]:
        """Return those of one zone."""
        return self._records_of.get(zone, {})

    def is_deleting(self, kind: ResourceKind, id: str) -> bool:
        record = self.get(kind, id)
        return record is not None and record.deleting

    def deployment_of(self, pool: str) -> str | None:
        """Return the deployment that names this pool; at most one does."""
        return self._deployment_of.get(pool)

    def model_of(self, pool: str) -> str | None:
        """Return the model that its nodes load: its deployment's, else its own."""
        if (deployment := self.deployment_of(pool)) is not None:
            return self.deployments()[deployment].model
        spec = self.pools().get(pool)
        return spec.model if spec is not None else None

    @cached_property
    def _deployment_of(self) -> dict[str, str]:
        """Return them by pool."""
        return {
            pool: id
            for id, deployment in self.deployments().items()
            if not self.is_deleting(DEPLOYMENT, id)
            for pool in deployment.pools
        }

    @cached_property
    def _records_of(self) -> dict[str, dict[str, DnsRecordSpec]]:
        """Return them by zone, and id."""
        found: dict[str, dict[str, DnsRecordSpec]] = {}
        for id, spec in self._specs(DNS_RECORD).items():
            found.setdefault(spec.zone, {})[id] = spec
        return found

    @cached_property
    def _by_kind(self) -> dict[str, dict[str, Record]]:
        """Return them by id, in its order."""
        found: dict[str, dict[str, Record]] = {}
        for (kind, id), record in sorted(self.records.items(), key=lambda item: item[0]):
            found.setdefault(kind, {})[id] = record
        return found

    def _specs(self, kind: ResourceKind) -> Mapping[str, Any]:
        if kind.name not in self._by_type:
            records = self._by_kind.get(kind.name, {}).values()
            specs = {record.id: record.spec for record in records}
            self._by_type[kind.name] = MappingProxyType(specs)
        return self._by_type[kind.name]
