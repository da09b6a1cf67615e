"""`/openapi.json`: the HTTP API in OpenAPI 3.1, made of the structs that check it.

Each operation names its structs; statuses and error bodies follow from its dialect, since any
request can fail in any documented way.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from skerry import __version__, wire
from skerry.errors import SkerryError
from skerry_edge.api.batch.files import FORM
from skerry_edge.api.documents.openapi_bodies import AnthropicError, PageInfo, RefusedHead
from skerry_edge.api.documents.openapi_operations import (
    JSON,
    OPERATIONS,
    Errors,
    Operation,
    Schema,
    Struct,
    parameter,
)
from skerry_edge.envelopes import JSONBytes, encode
from skerry_edge.gate.auth import PUBLIC_PATHS

REFERENCE = "#/components/schemas/{name}"
EVENTS = "text/event-stream"
HEAD_STATUSES = (400, 408, 413, 414, 431, 503)  # of requests that are refused before routing
ERRORS: dict[Errors, Struct] = {
    "native": wire.ErrorEnvelope,
    "openai": wire.OpenAIError,
    "anthropic": AnthropicError,
    "binding": wire.BindingError,
}


async def openapi(request: Request) -> Response:
    """`GET /openapi.json`."""
    return JSONBytes(_encoded())


@functools.cache
def _encoded() -> bytes:
    return encode(document())


def document() -> Schema:
    """The whole description."""
    types: list[Any] = [PageInfo, RefusedHead, wire.ApiMessage, *ERRORS.values()]
    for operation in OPERATIONS:
        types += [*operation.inputs, *operation.results]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    named = dict(zip(map(_key, types), schemas, strict=True))
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        item = paths.setdefault(operation.path, {})
        if "{account_id}" in operation.path:
            pattern = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
            account = parameter("account_id", "path", pattern, "The account of the token.")
            item["parameters"] = [account]
        item[operation.verb] = _operation(operation, named)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Skerry", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation, named: dict[str, Schema]) -> Schema:
    good: Schema = {operation.media: {"schema": _result(operation, named)}}
    if operation.streams:
        good[EVENTS] = {"schema": {"type": "string"}}
    responses: Schema = {}
    for status in sorted({kind.status for kind in _kinds() if kind.status} | {*HEAD_STATUSES}):
        failed = [ERRORS[operation.errors], *([RefusedHead] if status in HEAD_STATUSES else [])]
        error = {JSON: {"schema": _any_of([named[_key(kind)] for kind in failed])}}
        responses[str(status)] = {"description": "The request failed.", "content": error}
    for status in (200, *operation.statuses):
        responses[str(status)] = {"description": operation.summary, "content": good}
    described: Schema = {
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": responses,
    }
    if operation.path in PUBLIC_PATHS:
        described["security"] = []
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.inputs:
        body = _any_of([named[_key(kind)] for kind in operation.inputs])
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    if operation.form:
        described["requestBody"] = {"required": True, "content": {FORM: {"schema": operation.form}}}
    return described


def _result(operation: Operation, named: dict[str, Schema]) -> Schema:
    result = _any_of([named[_key(kind)] for kind in operation.results])
    if not operation.enveloped:
        return result
    messages = {"type": "array", "items": named[_key(wire.ApiMessage)]}
    properties = {
        "result": result,
        "success": {"const": True},
        "errors": {"type": "array", "maxItems": 0},
        "messages": messages,
    }
    if operation.paged:
        properties["result_info"] = named[_key(PageInfo)]
    return {"type": "object", "properties": properties, "required": list(properties)}


def _any_of(schemas: list[Schema]) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _key(kind: Any) -> str:
    return repr(kind)


def _kinds() -> list[type[SkerryError]]:
    return list(SkerryError.by_code.values())
