"""The control API in OpenAPI 3.1, made of the structs that check it."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from msgspec import Struct

from skerry import __version__
from skerry_regions.control.desired.resources import DNS_ZONE, KINDS, Kind
from skerry_regions.control.desired.store import AuditEntry, EventEntry
from skerry_regions.control.desired.views import DnsAnswer, NodeView, PlatformStatus
from skerry_regions.control.errors import ERRORS, ErrorBody
from skerry_regions.control.machines.book import MachineView
from skerry_regions.control.machines.join_tokens import JoinToken, JoinTokenSpec

Schema = dict[str, Any]

PREFIX = "/control/v1"
PUBLIC_PATHS = frozenset({"/healthz", f"{PREFIX}/openapi.json"})
REFERENCE = "#/components/schemas/{name}"
JSON = "application/json"

AFTER_ID: Schema = {
    "name": "after", "in": "query", "schema": {"type": "string"},
    "description": "`next` of the page before.",
}  # fmt: skip
AFTER_SEQUENCE: Schema = AFTER_ID | {"schema": {"type": "integer", "minimum": 0}}
LIMIT: Schema = {
    "name": "limit", "in": "query", "description": "Items of a page.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 500, "default": 100},
}  # fmt: skip
ID: Schema = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
IF_MATCH: Schema = {
    "name": "If-Match", "in": "header", "schema": {"type": "string"},
    "description": "The etag it was read with: 412 when it was changed since.",
}  # fmt: skip
IF_NONE_MATCH: Schema = {
    "name": "If-None-Match", "in": "header", "schema": {"type": "string"},
    "description": "The etag that is known: 304 while nothing has changed.",
}  # fmt: skip
IDEMPOTENCY_KEY: Schema = {
    "name": "Idempotency-Key", "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "Sent again within a day, the same request gets the same answer.",
}  # fmt: skip


class Health(Struct):
    status: str


@functools.cache
def document() -> Schema:
    """The whole description."""
    specs = [kind.spec for kind in KINDS]
    resources = [kind.resource for kind in KINDS]
    types: list[Any] = [
        *specs, *resources, ErrorBody, NodeView, PlatformStatus, EventEntry, AuditEntry, Health,
        DnsAnswer, JoinTokenSpec, JoinToken, MachineView,
    ]  # fmt: skip
    _, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    paths: dict[str, Schema] = {
        "/healthz": _get("health", "The process answers", _ref(Health)),
        f"{PREFIX}/openapi.json": _get("openapi", "This document", {"type": "object"}),
        f"{PREFIX}/status": _get(
            "platformStatus", "The platform at a glance", _ref(PlatformStatus)
        ),
        f"{PREFIX}/nodes": _list("listNodes", "What runs", NodeView, AFTER_ID),
        f"{PREFIX}/events": _list("listEvents", "What happened", EventEntry, AFTER_SEQUENCE),
        f"{PREFIX}/audit": _list("listAudit", "Who changed what", AuditEntry, AFTER_SEQUENCE),
    }
    paths |= _dns_paths()
    paths |= _machine_paths()
    for path in PUBLIC_PATHS:
        paths[path]["get"]["security"] = []
    for kind in KINDS:
        collection, item = _paths(kind)
        paths[f"{PREFIX}/{kind.collection}"] = collection
        paths[f"{PREFIX}/{kind.collection}/{{id}}"] = item
    return {
        "openapi": "3.1.0",
        "info": {"title": "Skerry control plane", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _dns_paths() -> dict[str, Schema]:
    """What is read of zones beside the resources."""
    contents = _operation(
        "getDnsZoneContents", "All that a DNS server of the zone has to know, as a topology",
        {"200": {"type": "object"}, "304": None}, [ID, IF_NONE_MATCH],
    )  # fmt: skip
    answer = _operation(
        "getDnsAnswer", "What a zone answers now", {"200": _ref(DnsAnswer)},
        [
            _query("name", "The name that is asked for.") | {"required": True},
            _query("type", "Of records; A unless given."),
            _query("client", "An address or network that the question comes from."),
        ],
    )  # fmt: skip
    return {
        f"{PREFIX}/{DNS_ZONE.collection}/{{id}}/contents": {"get": contents},
        f"{PREFIX}/dns_answer": {"get": answer},
    }


def _machine_paths() -> dict[str, Schema]:
    """Of machines that join, and the tokens that let them."""
    token, machine = _ref(JoinToken), _ref(MachineView)
    tokens = _list("listJoinTokens", "All of them, in pages", JoinToken, AFTER_ID)
    tokens["post"] = _operation(
        "createJoinToken", "Let machines join", {"201": token}, [IDEMPOTENCY_KEY],
        {"required": True, "content": {JSON: {"schema": _ref(JoinTokenSpec)}}},
    )  # fmt: skip
    return {
        f"{PREFIX}/join_tokens": tokens,
        f"{PREFIX}/join_tokens/{{id}}": {
            "get": _operation("getJoinToken", "Read one", {"200": token}, [ID]),
            "delete": _operation("deleteJoinToken", "No machine joins by it", {"204": None}, [ID]),
        },
        f"{PREFIX}/machines": _list("listMachines", "Who joined", MachineView, AFTER_ID),
        f"{PREFIX}/machines/{{id}}": {
            "get": _operation("getMachine", "Read one", {"200": machine}, [ID]),
            "delete": _operation("revokeMachine", "Shut one out", {"200": machine}, [ID]),
        },
    }


def _query(name: str, description: str) -> Schema:
    return {
        "name": name, "in": "query", "schema": {"type": "string"}, "description": description,
    }  # fmt: skip


def _paths(kind: Kind) -> tuple[Schema, Schema]:
    """Of the collection, and of one of its resources."""
    name = kind.resource.__name__
    resource, spec = _ref(kind.resource), _ref(kind.spec)
    fields = set(kind.spec.__struct_fields__) - kind.fixed
    patch = {
        "description": "A JSON merge patch (RFC 7386) of: " + ", ".join(sorted(fields)) + ".",
        "required": True,
        "content": {"application/merge-patch+json": {"schema": {"type": "object"}}},
    }
    create = {"required": True, "content": {JSON: {"schema": spec}}}
    collection = _list(f"list{name}s", "All of them, in pages", kind.resource, AFTER_ID)
    collection["post"] = _operation(
        f"create{name}", "Create one", {"201": resource}, [IDEMPOTENCY_KEY], create
    )
    item = {
        "get": _operation(f"get{name}", "Read one", {"200": resource}, [ID]),
        "patch": _operation(
            f"update{name}", "Change one", {"200": resource}, [ID, IF_MATCH], patch
        ),
        "delete": _operation(
            f"delete{name}", "Delete one: 202 while it drains, 204 when it is gone",
            {"202": resource, "204": None}, [ID, IF_MATCH],
        ),
    }  # fmt: skip
    return collection, item


def _list(id: str, summary: str, item: type[Struct], after: Schema) -> Schema:
    next = {"type": [after["schema"]["type"], "null"]}
    page = {
        "type": "object",
        "required": ["items", "next"],
        "properties": {"items": {"type": "array", "items": _ref(item)}, "next": next},
    }
    return {"get": _operation(id, summary, {"200": page}, [after, LIMIT])}


def _get(id: str, summary: str, result: Schema) -> Schema:
    return {"get": _operation(id, summary, {"200": result}, [])}


def _operation(
    id: str,
    summary: str,
    results: dict[str, Schema | None],
    parameters: list[Schema],
    body: Schema | None = None,
) -> Schema:
    responses: Schema = {}
    for status, result in results.items():
        content = {} if result is None else {"content": {JSON: {"schema": result}}}
        responses[status] = {"description": summary, **content}
    for kind in ERRORS:
        description = (kind.__doc__ or "").strip()
        content = {"content": {JSON: {"schema": _ref(ErrorBody)}}}
        responses[str(kind.status)] = {"description": description, **content}
    operation: Schema = {"operationId": id, "summary": summary, "responses": responses}
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = body
    return operation


def _ref(type_: type[Struct]) -> Schema:
    return {"$ref": REFERENCE.format(name=type_.__name__)}
