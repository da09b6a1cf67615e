"""Files that `skerry apply` takes: read with their lines, and written of what is wanted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from skerry_cli.home.platform_client import PlatformClient
from skerry_cli.resources.kinds import KINDS, Named
from skerry_regions.control.desired.manifest import Manifest, load_manifest, parse_manifest, wishes
from skerry_regions.control.desired.resources import (
    DeploymentSpec,
    EdgeNodeSpec,
    PoolSpec,
    RoutingSpec,
)
from skerry_regions.models import located_yaml

COLLECTIONS = {kind: collection for collection, kind in KINDS.items()}
SPECS: dict[str, type[Struct]] = {
    "pools": PoolSpec, "edge_nodes": EdgeNodeSpec, "deployments": DeploymentSpec,
}  # fmt: skip


def read_manifest(path: Path) -> tuple[located_yaml.Located[Manifest], dict[str, Any]]:
    """Return a file with its lines, and as JSON. `-` is stdin. Raises ManifestError."""
    if str(path) == "-":
        document = parse_manifest(sys.stdin.buffer.read(located_yaml.MAX_SIZE + 1), "stdin")
    else:
        document = load_manifest(path)
    values: dict[str, Any] = msgspec.to_builtins(document.value)
    return document, values


def resources_of(document: located_yaml.Located[Manifest]) -> list[Named]:
    """Return what a file names, users before what they use."""
    return [Named(COLLECTIONS[wish.kind.name], wish.id) for wish in wishes(document.value)][::-1]


def manifest_text(client: PlatformClient) -> str:
    """Return all that is wanted, but for DNS and API tokens, as a file. Raises PlatformError."""
    regions = client.all("/regions")
    sections = {"regions": [_region(each) for each in regions]}
    for name, spec in SPECS.items():
        items = [_in_a_file(_without_defaults(each, spec)) for each in client.all(f"/{name}")]
        sections["edges" if name == "edge_nodes" else name] = items
    sections["links"] = [
        {"between": [region["name"], path["to"]]}
        | {name: path[name] for name in ("rtt", "bandwidth") if path[name] is not None}
        for region in regions
        for path in region["paths"]
    ]
    kept: dict[str, Any] = {name: items for name, items in sections.items() if items}
    for each in client.all("/routing"):
        kept |= _without_defaults(each, RoutingSpec)
    kept.pop("name", None)
    text: str = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=80)
    return text.rstrip()


def _without_defaults(resource: dict[str, Any], spec: type[Struct]) -> dict[str, Any]:
    """Return the written fields of a resource that are not what they would be anyway."""
    fields = {}
    for field in msgspec.structs.fields(spec):
        value = resource[field.encode_name]
        default = None if field.required else field.default
        default = msgspec.json.decode(msgspec.json.encode(default))  # as it is listed
        if value is not None and (field.required or value != default):
            fields[field.name] = value
    return fields


def _in_a_file(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields as a file has them: an edge's certificate is one section there."""
    tls = {name: fields.pop(f"tls_{name}") for name in ("cert", "key") if f"tls_{name}" in fields}
    if "public_url" in fields:
        fields["url"] = fields.pop("public_url")
    return fields | ({"tls": tls} if tls else {})


def _region(resource: dict[str, Any]) -> dict[str, Any]:
    fields = {"name": resource["name"]}
    if resource["iata"] is not None:
        fields["iata"] = resource["iata"]
    if resource["latitude"] is not None:
        fields["coordinates"] = [resource["latitude"], resource["longitude"]]
    if resource["residency"] != "global":
        fields["residency"] = resource["residency"]
    if resource["draining"]:
        fields["draining"] = True
    return fields
