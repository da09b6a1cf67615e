"""The calls of an API, out of its own OpenAPI document, as pages of the console want them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]

PATH = "/console/docs/calls"
EVENTS = "text/event-stream"
DEEPEST = 3  # fields within fields that are listed; types of others are named
TEXTS = ("prompt", "content", "input", "text", "query")  # fields that a model reads
EXAMPLES: Mapping[str, Any] = {
    "model": "@model/of/yours",  # the page has one that is served
    "role": "user",
    "max_tokens": 64,
    "completion_window": "24h",
} | dict.fromkeys(TEXTS, "Hello")
INPUTS = ("input", "inputs")  # of any model


@dataclass(frozen=True, slots=True)
class CallField:
    """A field of a body or an answer."""

    name: str
    words: str  # what it takes
    is_required: bool
    description: str
    inner: tuple[CallFields, ...]


@dataclass(frozen=True, slots=True)
class CallFields:
    """Fields of one thing that a value may be."""

    title: str
    fields: tuple[CallField, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One operation. Parameters and the fields of a form are `inputs`, as OpenAPI has them."""

    id: str
    method: str
    path: str
    summary: str
    needs_token: bool
    inputs: tuple[Schema, ...]
    media: str  # of the body; empty: none
    body: tuple[CallFields, ...]
    example: str  # of a body, as JSON; empty for a form
    answers: Mapping[str, tuple[CallFields, ...]]  # by status, where it went well
    streams: bool
    refusals: tuple[str, ...]  # statuses
    refusal: tuple[CallFields, ...]

    @property
    def address(self) -> str:
        return f"{PATH}/{self.id}"

    @property
    def short_path(self) -> str:
        return self.path.replace("/client/v4/accounts/{account_id}", "…")


def calls_of(document: Schema) -> list[Call]:
    """Return the operations of a document, in its order."""
    reader = _SchemaReader(document["components"]["schemas"])
    return [
        reader.call(path, method, operation, item.get("parameters", []))
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
    ]


class _SchemaReader:
    """Reads schemas, whose references are to `components`."""

    def __init__(self, components: Schema) -> None:
        self._components = components

    def call(self, path: str, method: str, told: Schema, shared: list[Schema]) -> Call:
        content: Schema = told.get("requestBody", {}).get("content", {})
        media = next(iter(content), "")
        schema: Schema = content[media]["schema"] if media else {}
        is_form = media == "multipart/form-data"
        form = [
            {"name": name, "in": "form", "schema": each, "required": True}
            for name, each in schema.get("properties", {}).items()
            if is_form
        ]
        good = {code: each for code, each in told["responses"].items() if code < "300"}
        bad = {code: each for code, each in told["responses"].items() if code >= "400"}
        return Call(
            id=told["operationId"],
            method=method.upper(),
            path=path,
            summary=told["summary"],
            needs_token=told.get("security") != [],
            inputs=(*shared, *told.get("parameters", ()), *form),
            media=media,
            body=self.fields(schema),
            example="" if is_form else json.dumps(self.example(schema), indent=2),
            answers={code: self._contents(each) for code, each in good.items()},
            streams=any(EVENTS in each.get("content", ()) for each in good.values()),
            refusals=tuple(bad),
            refusal=self._contents(next(iter(bad.values()), {})),
        )

    def _contents(self, response: Schema) -> tuple[CallFields, ...]:
        content = response.get("content", {})
        return tuple(each for kind in content.values() for each in self.fields(kind["schema"]))

    def fields(self, schema: Schema, depth: int = 1) -> tuple[CallFields, ...]:
        """Return the fields of all that a schema may be."""
        return tuple(
            CallFields(
                each.get("title", ""),
                tuple(
                    CallField(
                        name,
                        words_of(field),
                        name in each.get("required", ()),
                        " ".join(field.get("description", "").split()),
                        self.fields(field, depth + 1) if depth < DEEPEST else (),
                    )
                    for name, field in each["properties"].items()
                ),
            )
            for each in self._objects(schema)
        )

    def _objects(self, schema: Schema | bool, depth: int = 0) -> Iterator[Schema]:
        """Yield the schemas with fields that are in another."""
        own = self._resolved(schema)
        if "properties" in own:
            yield own
        elif depth < DEEPEST:
            for each in (*own.get("anyOf", ()), *([own["items"]] if "items" in own else ())):
                yield from self._objects(each, depth + 1)

    def example(self, schema: Schema | bool | None, name: str = "") -> Any:
        """Return a value with what a schema requires, as short as can be."""
        own = self._resolved(schema)
        if "anyOf" in own:
            return self.example(own["anyOf"][0], name)
        known = EXAMPLES.get(name)
        match own.get("type"):
            case _ if "const" in own:
                return own["const"]
            case _ if "enum" in own:
                return known if known in own["enum"] else own["enum"][0]
            case "string":
                return known if isinstance(known, str) else ""
            case "integer" | "number":
                return known if isinstance(known, int) else own.get("minimum", 0)
            case "boolean":
                return False
            case "array":
                return [self.example(own.get("items"), name)]
            case None if name in INPUTS:
                return {"prompt": EXAMPLES["prompt"]}
            case _:
                fields, wanted = own.get("properties", {}), own.get("required", [])
                if not any(each in TEXTS for each in wanted):
                    wanted = [*wanted, *[each for each in TEXTS if each in fields][:1]]
                return {each: self.example(fields[each], each) for each in wanted}

    def _resolved(self, schema: Schema | bool | None) -> Schema:
        while isinstance(schema, Mapping) and "$ref" in schema:
            schema = self._components[_name_of(schema)]
        return schema if isinstance(schema, Mapping) else {}


def words_of(schema: Schema | bool) -> str:
    """Return what a schema takes, in a few words."""
    if not isinstance(schema, Mapping):
        return "anything" if schema else "nothing"
    if "$ref" in schema:
        return _name_of(schema)
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(words for each in schema["anyOf"] if (words := words_of(each)) != "null")
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {words_of(schema.get('items', True))}"
    least, most = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    bounds = "" if least is most is None else f" {'' if least is None else least}…{most or ''}"
    return (kind if isinstance(kind, str) else " | ".join(kind)) + bounds


def _name_of(reference: Schema) -> str:
    return str(reference["$ref"]).rpartition("/")[2]
