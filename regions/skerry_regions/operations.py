"""Operations of an HTTP API: one table, of which its routes, its OpenAPI document and the form of
its errors are made.

Schemas are JSON Schema in which types may stand: a struct, or whatever else msgspec can describe,
for its own schema, and a tuple for any of what is in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skerry import __version__

Schema = Any
Content = Mapping[str, Schema]  # by media type
Handler = Callable[[Request], Awaitable[Response]]

JSON = "application/json"
REFERENCE = "#/components/schemas/{name}"
NOTHING: Mapping[str, Schema] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a status of a document means."""

    description: str
    content: Content


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How a dialect says that a request failed."""

    answers: Mapping[int, Outcome]  # by status
    encode: Callable[[Any, str], bytes]  # an error, and the request's id, as a body


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    method: str
    path: str  # as Starlette takes it
    handler: Callable[[Any], Awaitable[Response]]  # of the API's own form of a request
    scopes: tuple[str, ...] | None  # or roles: a token needs one; None: no token is needed
    errors: Errors
    is_counted: bool = False  # against what its caller may use, however it ends
    id: str = ""  # of the document; empty: served and not described
    summary: str = ""
    parameters: tuple[Schema, ...] = ()
    body: Content | None = None
    body_note: str = ""
    answers: Mapping[int, Content]  # where it went well, by status

    @property
    def described_path(self) -> str:
        return self.path.replace(":path}", "}")


def parameter(
    name: str, place: str, schema: Schema, description: str = "", *, required: bool = False
) -> Schema:
    """Return a parameter in a `place`: the query, the path, or a header."""
    made = {"name": name, "in": place, "schema": schema}
    if description:
        made["description"] = description
    if required or place == "path":
        made["required"] = True
    return made


def routes(
    operations: Iterable[Operation],
    guard: Callable[[Operation], Handler] = lambda operation: operation.handler,
) -> list[Route]:
    """Return routes in the order of the table. `guard` is what checks an operation's scopes."""
    return [Route(each.path, guard(each), methods=[each.method]) for each in operations]


def public_paths(operations: Iterable[Operation]) -> frozenset[str]:
    """Return the paths that need no token."""
    return frozenset(each.path for each in operations if each.scopes is None)


def document(
    title: str, operations: Iterable[Operation], *, in_path: Mapping[str, Schema] = NOTHING
) -> dict[str, Any]:
    """Return the description of an API in OpenAPI 3.1.

    `in_path` has schemas of parameters, by name, that all operations of a path share.
    """
    described = [each for each in operations if each.id]
    types = list(_types([_parts(each) for each in described]))
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    named = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in described:
        path = each.described_path
        item = paths.setdefault(path, {})
        if shared := [schema for name, schema in in_path.items() if f"{{{name}}}" in path]:
            item["parameters"] = shared
        item[each.method.lower()] = _resolved(_described(each), named)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _parts(operation: Operation) -> list[Any]:
    failed = [answer.content for answer in operation.errors.answers.values()]
    return [operation.body or {}, *operation.answers.values(), *failed]


def _described(operation: Operation) -> dict[str, Any]:
    failed = operation.errors.answers.items()
    responses = {str(status): _response(each.description, each.content) for status, each in failed}
    for status, content in operation.answers.items():
        responses[str(status)] = _response(operation.summary, content)
    described: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": responses,
    }
    if operation.scopes is None:
        described["security"] = []
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.body is not None:
        note = {"description": operation.body_note} if operation.body_note else {}
        described["requestBody"] = {"required": True} | note | _content(operation.body)
    return described


def _response(description: str, content: Content) -> dict[str, Any]:
    return {"description": description} | (_content(content) if content else {})


def _content(content: Content) -> dict[str, Any]:
    return {"content": {media: {"schema": schema} for media, schema in content.items()}}


def _types(schema: Schema) -> Iterator[Any]:
    """Yield the types that stand in a schema."""
    if isinstance(schema, Mapping):
        yield from _types(list(schema.values()))
    elif isinstance(schema, list | tuple):
        for each in schema:
            yield from _types(each)
    elif not isinstance(schema, str | int | float | bool | None):
        yield schema


def _resolved(schema: Schema, named: Mapping[str, Schema]) -> Schema:
    """Return a schema with others in place of the types in it."""
    if isinstance(schema, Mapping):
        return {name: _resolved(value, named) for name, value in schema.items()}
    if isinstance(schema, list):
        return [_resolved(each, named) for each in schema]
    if isinstance(schema, tuple):
        each = [_resolved(one, named) for one in schema]
        return each[0] if len(each) == 1 else {"anyOf": each}
    return named.get(repr(schema), schema)
