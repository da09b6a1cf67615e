"""What the types cannot say of a spec: what must agree inside it, and with what is there."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, get_type_hints

import msgspec

from skerry_regions.access import SCOPES_OF, fault
from skerry_regions.address import LOOPBACK
from skerry_regions.control.desired.desired import Desired, Record
from skerry_regions.control.desired.resources import (
    DNS_ZONE,
    POOL,
    REGION,
    ApiTokenSpec,
    DeploymentSpec,
    EdgeNodeSpec,
    PoolSpec,
    RegionSpec,
    ResourceKind,
    Spec,
)
from skerry_regions.control.dns.checks import check_beside, check_record, check_zone, regions_of
from skerry_regions.control.dns.specs import DnsRecordSpec, DnsZoneSpec
from skerry_regions.control.errors import Conflict, Invalid
from skerry_regions.spec_types import readable
from skerry_regions.topology.airports import AIRPORTS
from skerry_regions.topology.zone_spec import address_mistakes

MAX_NAMED = 10  # users of one resource, in a refusal

_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.+)`$")
_MISSING = re.compile(r"Object missing required field `(.+)`$")


def spec_of(kind: ResourceKind, values: dict[str, Any]) -> Spec:
    """Return `values` as the kind's spec, checked by itself. Raises Invalid with the field's
    path."""
    spec: Spec = converted(kind.spec, values)
    _check_alone(spec)
    return spec


def converted(type_: type[Any], values: Any) -> Any:
    """Return values that came from outside as a struct. Raises Invalid with the field's path."""
    try:
        return msgspec.convert(values, type_)
    except msgspec.ValidationError as error:
        raise _located(str(error)) from None


def check_planned(kind: ResourceKind, values: dict[str, Any], unknown: Collection[str]) -> None:
    """Check what is to be written later, where the values of some fields are `unknown` yet.

    What is there now does not count: it may be written first. Raises Invalid with the field's path.
    """
    if not unknown:
        spec_of(kind, values)
        return
    types = get_type_hints(kind.spec, include_extras=True)
    for name, value in values.items():
        if name not in types:
            raise Invalid(f"{name}: there is no such field", field=name)
        try:
            msgspec.convert(value, types[name])
        except msgspec.ValidationError as error:
            found = _located(str(error))
            raise Invalid(f"{name}: {found.message}", field=name + (found.field or "")) from None
    iata, has_place = values.get("iata"), "latitude" in {*values, *unknown}
    if kind is REGION and iata is not None and not has_place:
        _check_airport(iata)


def _located(told: str) -> Invalid:
    """Locate the error: msgspec's messages end in the place, as in "Expected `int` >= 1 - at
    `$.pools[0]`"."""
    match = _PLACE.match(told)
    what, path = (readable(match["what"]), match["path"] or "") if match else (told, "")
    for form in (_UNKNOWN, _MISSING):
        if named := form.match(what):
            path = f"{path}.{named[1]}".lstrip(".")
            what = "there is no such field" if form is _UNKNOWN else "the field is required"
    return Invalid(f"{path}: {what}" if path else what, field=path or None)


def _check_alone(spec: Spec) -> None:
    match spec:
        case RegionSpec():
            _check_place(spec)
        case PoolSpec():
            _check_pool(spec)
        case EdgeNodeSpec():
            _check_edge(spec)
        case DeploymentSpec():
            _check_unique("pools", spec.pools)
        case ApiTokenSpec():
            _check_token(spec)
        case DnsRecordSpec():
            check_record(spec)
        case _:
            pass  # a zone depends on regions, and routing's types say all


def _check_place(spec: RegionSpec) -> None:
    if (spec.latitude is None) != (spec.longitude is None):
        missing = "latitude" if spec.latitude is None else "longitude"
        raise Invalid("latitude and longitude belong together", field=missing)
    if spec.latitude is None:
        if spec.iata is None:
            raise Invalid("give an airport, or latitude and longitude", field="iata")
        _check_airport(spec.iata)


def _check_airport(iata: str | None) -> None:
    if iata not in AIRPORTS:
        what = f"the airport {iata!r} is not in our list; give latitude and longitude"
        raise Invalid(what, field="iata")


def _check_pool(spec: PoolSpec) -> None:
    if (found := spec.parallel_mistake(spec.runner)) is not None:
        raise Invalid(found[1], field=found[0])
    if spec.launcher != "local" and spec.threads is None:
        raise Invalid("a node that is placed by its threads needs some", field="threads")
    if spec.launcher == "kubernetes" and spec.memory in (None, "none"):
        raise Invalid("a node on a pod needs memory, to which it is bounded", field="memory")
    if not spec.is_autoscaled:
        if spec.min_replicas is None:
            return
        raise Invalid("min_replicas needs max_replicas", field="min_replicas")
    if spec.replicas is not None:
        raise Invalid("replicas and max_replicas exclude each other", field="replicas")
    if (spec.min_replicas or 0) > (spec.max_replicas or 0):
        raise Invalid("min_replicas is above max_replicas", field="min_replicas")


def _check_edge(spec: EdgeNodeSpec) -> None:
    if (spec.tls_cert is None) != (spec.tls_key is None):
        missing = "tls_cert" if spec.tls_cert is None else "tls_key"
        raise Invalid("tls_cert and tls_key belong together", field=missing)
    for where, mistake in address_mistakes("addresses", spec.addresses):
        raise Invalid(mistake, field=where)


def _check_token(spec: ApiTokenSpec) -> None:
    _check_unique("scopes", spec.scopes)
    _check_unique("models", spec.models or ())
    try:
        grant = spec.grant
    except ValueError:
        raise Invalid(f"there is no {spec.expires_at}", field="expires_at") from None
    if not spec.scopes:
        grant = msgspec.structs.replace(grant, scopes=SCOPES_OF[spec.role])
    if "admin" not in spec.scopes and (found := fault(grant)) is not None:
        raise Invalid(found.message, field=found.field)


def _check_unique(field: str, values: tuple[str, ...]) -> None:
    for i, value in enumerate(values):
        if value in values[:i]:
            raise Invalid(f"{value!r} is there twice", field=f"{field}[{i}]")


# --- against what is there -----------------------------------------------------------------------


def check_references(spec: Spec, id: str, desired: Desired) -> None:
    """Check what a new or changed spec says of others. Raises Invalid, or Conflict for a taken
    name."""
    match spec:
        case RegionSpec():
            _check_paths(spec, desired)
        case EdgeNodeSpec():
            _check_region(spec.region, desired)
            _check_port(spec, id, desired)
            for pool in desired.pools():
                _check_names(id, pool)
        case PoolSpec():
            _check_region(spec.region, desired)
            for edge in desired.edge_nodes():
                _check_names(edge, id)
            if (deployment := desired.deployment_of(id)) is not None:
                _check_model(spec, desired.deployments()[deployment].model, "model")
        case DeploymentSpec():
            _check_pools(spec, id, desired)
        case DnsZoneSpec():
            zones = {name: region.residency for name, region in desired.regions().items()}
            check_zone(spec, zones, desired.dns_records(id).values())
        case DnsRecordSpec():
            _check_record_beside(spec, id, desired)
        case _:
            pass


def _check_record_beside(spec: DnsRecordSpec, id: str, desired: Desired) -> None:
    zone = desired.dns_zones().get(spec.zone)
    if zone is None:
        raise Invalid(f"there is no DNS zone {spec.zone!r}", field="zone")
    records = desired.dns_records(spec.zone)
    check_beside(spec, zone, (other for key, other in records.items() if key != id))


def _check_paths(spec: RegionSpec, desired: Desired) -> None:
    stored = desired.regions().get(spec.name)  # a region that it led to may have gone since
    for i, path in enumerate(spec.paths):
        other = spec if path.to == spec.name else desired.regions().get(path.to)
        if other is None and (stored in (None, spec) or path not in stored.paths):
            raise Invalid(f"there is no region {path.to!r}", field=f"paths[{i}].to")
        is_theirs = other not in (None, spec) and other.leads_to(spec.name)
        if is_theirs or path.to in [each.to for each in spec.paths[:i]]:
            raise Invalid(f"the path to {path.to!r} is there twice", field=f"paths[{i}].to")


def _check_region(name: str, desired: Desired) -> None:
    if desired.get(REGION, name) is None:
        raise Invalid(f"there is no region {name!r}", field="region")
    if desired.is_deleting(REGION, name):
        raise Invalid(f"the region {name!r} is being deleted", field="region")


def _check_port(spec: EdgeNodeSpec, id: str, desired: Desired) -> None:
    """Check that no two listen at one port: callers would reach either."""
    for other, edge in desired.edge_nodes().items():
        is_same = spec.host == edge.host or not LOOPBACK.keys().isdisjoint((spec.host, edge.host))
        if other != id and spec.port and spec.port == edge.port and is_same:
            raise Invalid(f"the edge node {other!r} has this port", field="port")


def _check_names(edge: str, pool: str) -> None:
    """Check names: processes of both are called by name and number, in one registry."""
    if edge == pool:
        raise Conflict(f"an edge node and a pool would both be called {edge!r}", field="name")


def _check_pools(spec: DeploymentSpec, id: str, desired: Desired) -> None:
    pools = desired.pools()
    for i, pool in enumerate(spec.pools):
        field = f"pools[{i}]"
        if pool not in pools or desired.is_deleting(POOL, pool):
            raise Invalid(f"there is no pool {pool!r}", field=field)
        if (other := desired.deployment_of(pool)) not in (None, id):
            raise Invalid(f"the pool {pool!r} serves the deployment {other!r}", field=field)
        _check_model(pools[pool], spec.model, field)
    if all(pools[pool].role == "prefill" for pool in spec.pools):
        raise Invalid("none of these pools decodes", field="pools")


def _check_model(pool: PoolSpec, model: str, field: str) -> None:
    if pool.model not in (None, model):
        own = f"the pool has the model {pool.model!r} of its own"
        raise Invalid(f"{own}, the deployment {model!r}", field=field)


def check_deletable(record: Record, desired: Desired) -> None:
    """Raises Conflict while it is protected, or something that is to stay needs it."""
    if isinstance(record.spec, PoolSpec) and record.spec.deletion_protection:
        raise Conflict(
            "the pool is protected; set deletion_protection to false first",
            field="deletion_protection",
        )
    users = [
        f"{other.kind.name} {other.id!r}"
        for other in desired.records.values()
        if not other.deleting and _needs(other.spec, record)
    ]
    if users:
        named = ", ".join(sorted(users)[:MAX_NAMED])
        raise Conflict(f"{record.kind.name} {record.id!r} is still used by {named}")


def _needs(spec: Spec, record: Record) -> bool:
    match spec:
        case PoolSpec() | EdgeNodeSpec():
            return record.kind is REGION and record.id == spec.region
        case DeploymentSpec():
            return record.kind is POOL and record.id in spec.pools
        case DnsZoneSpec():
            return record.kind is REGION and record.id in regions_of(spec)
        case DnsRecordSpec():
            return record.kind is DNS_ZONE and record.id == spec.zone
        case _:
            return False
