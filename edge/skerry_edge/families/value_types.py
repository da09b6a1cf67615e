"""What a bare value of an argument is, where only the tool's schema says whether it is a text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_PYTHON: Final = {"True": "true", "False": "false", "None": "null"}
_MAX_DEPTH: Final = 8  # of references and alternatives

Schema = Mapping[str, Any]


def types_of(schema: Any, root: Schema, depth: int = 0) -> frozenset[str] | None:
    """Return JSON's types that a schema allows by what it says itself; None where it says none."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return None
    if isinstance(ref := schema.get("$ref"), str):
        return types_of(referred(ref, root), root, depth + 1)
    if (kind := schema.get("type")) is not None:
        return frozenset((kind,) if isinstance(kind, str) else kind)
    if values := constants(schema):
        return frozenset(map(_type_of, values))
    for key in ("anyOf", "oneOf"):
        if branches := schema.get(key):
            each = [types_of(branch, root, depth + 1) for branch in branches]
            return None if None in each else frozenset[str]().union(*filter(None, each))
    return None


def constants(schema: Schema) -> list[Any]:
    """Return the only values that a schema allows, if it lists them."""
    if "enum" in schema:
        values: list[Any] = schema["enum"]
        return values
    return [schema["const"]] if "const" in schema else []


def argument(schema: Schema, key: str) -> Any:
    """Return the schema of one argument; none for an argument that was not declared."""
    properties = schema.get("properties")
    return properties.get(key) if isinstance(properties, Mapping) else None


def read_as_text(schema: Schema, key: str) -> bool:
    """Return whether an argument can only be a text, so that it is read as it stands."""
    return types_of(argument(schema, key), schema) == frozenset(("string",))


def typed_json(schema: Schema, key: str, value: str) -> str:
    """Return a bare value as JSON: as it stands where it is such a value, else as a text."""
    types = types_of(argument(schema, key), schema)
    bare = value.strip()
    bare = _PYTHON.get(bare, bare)
    try:
        kind = _type_of(json.loads(bare, parse_constant=_refused))
    except (ValueError, RecursionError):
        return json.dumps(value, ensure_ascii=False)
    if types is None or kind in types or (kind == "integer" and "number" in types):
        return bare
    return json.dumps(value, ensure_ascii=False) if "string" in types else bare


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def referred(ref: str, root: Schema) -> Any:
    """Return what a reference (RFC 6901) names in its document; None for nothing, and for anchors
    and other documents."""
    if ref != "#" and not ref.startswith("#/"):
        return None
    found: Any = root
    for part in ref.split("/")[1:]:
        if not isinstance(found, Mapping):
            return None
        found = found.get(part.replace("~1", "/").replace("~0", "~"))
    return found


def _type_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
