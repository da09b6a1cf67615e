"""Providers that are only schemas: Terraform checks configuration by them, and makes nothing.

What is served is the output of `terraform providers schema -json`, or a part of it in the same
form: `infra/terraform/schemas` has parts of the published schemas of cloud providers.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from skerry_terraform.kit.diagnostics import Diagnostics, ProviderError
from skerry_terraform.kit.planning import Object
from skerry_terraform.kit.provider import CallContext, Provider, Resource
from skerry_terraform.kit.schema import Attr, Block, Schema
from skerry_terraform.kit.values import BOOL, NUMBER, STRING, ListOf, MapOf, ObjectOf, SetOf, Type

SCALARS: Mapping[str, Type] = {"string": STRING, "number": NUMBER, "bool": BOOL}
COLLECTIONS = {"list": ListOf, "set": SetOf, "map": MapOf}


def stand_in(path: Path) -> tuple[str, Provider[str]]:
    """The source address of the one provider of a file, and the provider."""
    document = msgspec.json.decode(path.read_bytes())
    [(address, schemas)] = document["provider_schemas"].items()
    resources = [_Resource(kind, schema) for kind, schema in schemas["resource_schemas"].items()]
    return address, Provider(
        name=address.rpartition("/")[2],
        schema=_schema(schemas["provider"]),
        configure=_configure,
        release=_forget,
        resources=resources,
    )


class _Resource(Resource[str]):
    def __init__(self, kind: str, schema: Mapping[str, Any]) -> None:
        self.name = kind.partition("_")[2]  # type: ignore[misc]
        self.schema = _schema(schema)  # type: ignore[misc]

    def validate(self, config: Object, diagnostics: Diagnostics) -> None:
        """As real providers do: Terraform itself finds this only when it plans."""
        for name, attr in self.schema.attributes.items():
            if not attr.is_configurable and config[name] is not None:
                diagnostics.error(f"{name} is read-only", path=(name,))

    def create(self, ctx: CallContext[str]) -> Object:
        raise ProviderError(
            f"{self.name} is only a schema",
            "It checks configuration offline, and makes nothing.",
        )


def _configure(config: Object, stop: threading.Event) -> str:
    return "nobody"


def _forget(client: str) -> None:
    """There is nothing to let go of."""


def _schema(document: Mapping[str, Any]) -> Schema:
    block = _block(document["block"])
    return Schema(
        attributes=block.attributes, blocks=block.blocks, version=document.get("version", 0)
    )


def _block(block: Mapping[str, Any], **nesting: Any) -> Block:
    return Block(
        attributes=_attributes(block.get("attributes", {})),
        blocks={
            name: _block(
                nested["block"],
                nesting=nested["nesting_mode"],
                min_items=nested.get("min_items", 0),
                max_items=nested.get("max_items", 0),
            )
            for name, nested in block.get("block_types", {}).items()
        },
        **nesting,
    )


def _attributes(documents: Mapping[str, Any]) -> dict[str, Attr]:
    return {name: _attribute(document) for name, document in documents.items()}


def _attribute(document: Mapping[str, Any]) -> Attr:
    flags = {
        name: document.get(name, False)
        for name in ("required", "optional", "computed", "sensitive", "write_only")
    }
    if (nested := document.get("nested_type")) is None:
        return Attr(_type(document["type"]), **flags)
    return Attr(nested=_attributes(nested["attributes"]), nesting=nested["nesting_mode"], **flags)


def _type(document: Any) -> Type:
    """Of "string" or ["map", ["list", "string"]]."""
    if isinstance(document, str):
        return SCALARS[document]
    kind, inner = document
    if kind == "object":
        return ObjectOf({name: _type(each) for name, each in inner.items()})
    return COLLECTIONS[kind](_type(inner))
