"""Data sources: one resource, all of a kind, the platform at a glance."""

from __future__ import annotations

from collections.abc import Mapping

from skerry_terraform.kit.diagnostics import ProviderError
from skerry_terraform.kit.planning import Object
from skerry_terraform.kit.provider import DataSource
from skerry_terraform.kit.schema import Attr, Schema
from skerry_terraform.kit.values import NUMBER, from_raw
from skerry_terraform.provider.client import ControlPlane
from skerry_terraform.provider.refusals import explained
from skerry_terraform.provider.resource import ControlResource, Ctx, read_back


def _read_only(resource: ControlResource) -> dict[str, Attr]:
    """Return what the API knows of a resource; `status` of every kind."""
    attributes = _computed(resource.schema.attributes) | {
        name: Attr(
            computed=True, nested=_computed(block.attributes), nesting=block.nesting, doc=block.doc
        )
        for name, block in resource.schema.blocks.items()
    }
    known = {name: attr for name, attr in attributes.items() if name not in resource.local}
    return known | {"status": Attr(computed=True, doc="Its phase.")}


def _computed(attributes: Mapping[str, Attr]) -> dict[str, Attr]:
    """Return the same, to be read only."""
    return {
        name: Attr(
            attr.type,
            computed=True,
            nested=None if attr.nested is None else _computed(attr.nested),
            nesting=attr.nesting,
            doc=attr.doc,
        )
        for name, attr in attributes.items()
    }


class ResourceDataSource(DataSource[ControlPlane]):
    """`skerry_KIND`: a resource by its id."""

    def __init__(self, resource: ControlResource) -> None:
        self._resource = resource
        self._attributes = _read_only(resource)
        self.name = resource.name
        self.schema = Schema(
            doc=resource.schema.doc,
            attributes=self._attributes | {"id": Attr(required=True)},
        )

    def read(self, ctx: Ctx) -> Object:
        id = ctx.config["id"]
        with explained(self.name, self._attributes):
            found = ctx.client.get(self._resource.collection, id)
        if found is None:
            raise ProviderError(
                f"There is no {self.name} {id!r}", f"The control plane: {ctx.client.url}", ("id",)
            )
        return _known(self.schema, {name: read_back(found, name) for name in self._attributes})


class CollectionDataSource(DataSource[ControlPlane]):
    """`skerry_KINDs`: all resources of a kind, or with `by_region` those of one region."""

    def __init__(self, resource: ControlResource, *, by_region: bool = False) -> None:
        self._resource = resource
        self._attributes = _read_only(resource)
        self.name = resource.collection
        filters = {"region": Attr(optional=True, doc="Only of this one.")} if by_region else {}
        items = Attr(computed=True, nested=self._attributes, nesting="list")
        self.schema = Schema(
            doc=f"All of the kind {resource.name}, by id.", attributes=filters | {self.name: items}
        )

    def read(self, ctx: Ctx) -> Object:
        region = ctx.config.get("region")
        with explained(self.name, ()):
            found = [
                {name: read_back(each, name) for name in self._attributes}
                for each in ctx.client.list(self._resource.collection)
                if region is None or each["region"] == region
            ]
        return _known(self.schema, ctx.config | {self.name: found})


def _known(schema: Schema, read: Object) -> Object:
    """Return it without what a newer control plane adds."""
    values: Object = from_raw(schema.type, read)
    return values


class PlatformStatusDataSource(DataSource[ControlPlane]):
    """`skerry_platform_status`."""

    name = "platform_status"
    schema = Schema(
        doc="The platform at a glance.",
        attributes={
            "version": Attr(computed=True, doc="Of the control plane."),
            "account_id": Attr(computed=True, doc="The platform's own."),
            "regions": Attr(
                computed=True,
                nesting="list",
                nested={
                    "name": Attr(computed=True),
                    "status": Attr(computed=True, doc="Its phase."),
                    "ready_nodes": Attr(NUMBER, computed=True),
                    "desired_nodes": Attr(NUMBER, computed=True),
                },
            ),
        },
    )

    def read(self, ctx: Ctx) -> Object:
        with explained(self.name, ()):
            found = ctx.client.status()
        regions = [
            {
                "name": region["name"],
                "status": region["phase"],
                "ready_nodes": region["ready_nodes"],
                "desired_nodes": region["desired_nodes"],
            }
            for region in found["regions"]
        ]
        return {
            "version": found["version"], "account_id": found["account_id"], "regions": regions,
        }  # fmt: skip
