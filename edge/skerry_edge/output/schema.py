"""JSON schemas that callers write, checked before anything is built from them.

A keyword that would not be enforced is refused by its path, never ignored: what comes out then
holds what the schema says. `oneOf` is enforced where at most one branch can match: it is then
`anyOf`, which is what a grammar can do. An object that declares its properties and says nothing of
others gets no others, which is as valid, and what callers mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from skerry.errors import InvalidInput

Schema = dict[str, Any]

MAX_DEPTH: Final = 64  # of schemas in schemas
MAX_SCHEMAS: Final = 10_000  # in one

FORMATS: Final = frozenset(  # that are enforced
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
)
# Keywords by what their value is.
_SCHEMA: Final = frozenset(("additionalItems", "additionalProperties"))
_SCHEMAS: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_NAMED: Final = frozenset(("$defs", "definitions", "patternProperties", "properties"))
_NUMBERS: Final = frozenset(
    ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")
)
_COUNTS: Final = frozenset(
    ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")
)
_OTHERS: Final = frozenset(("$ref", "const", "enum", "format", "items", "pattern", "required"))
_ANNOTATIONS: Final = frozenset(  # say nothing of what is valid
    (
        *("$comment", "$id", "$schema", "default", "deprecated", "description", "discriminator"),
        *("example", "examples", "readOnly", "title", "writeOnly"),
        *("contentEncoding", "contentMediaType"),
    )
)
_HARMLESS: Final = {"uniqueItems": False, "nullable": False, "propertyNames": {"type": "string"}}
_TYPES: Final = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))


def checked(schema: object, path: str) -> Schema:
    """A copy of a schema in the form that grammars take.

    Raises `InvalidInput`, naming the path, for what cannot be enforced.
    """
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise _wrong(path, "a JSON schema must be an object")
    lowered: Schema = _Checker(schema).schema(schema, path, 0)
    return lowered


class _Checker:
    """One schema, with the definitions that it refers to."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._count = 0
        # Schemas that are combined must leave room for each other's properties.
        self._may_close = not _holds(root, "allOf", "$dynamicRef")

    def schema(self, schema: object, path: str, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise _wrong(path, "a schema must be an object or a boolean")
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_SCHEMAS:
            raise _wrong(path, f"more than {MAX_DEPTH} levels or {MAX_SCHEMAS} schemas")
        out: Schema = {}
        for keyword, value in schema.items():
            where = f"{path}.{keyword}"
            if keyword in _ANNOTATIONS or _is_harmless(keyword, value):
                continue
            if keyword == "oneOf":
                self._check_one_of(value, where)
                if "anyOf" in schema:
                    raise _wrong(where, "oneOf beside anyOf is not supported")
                keyword = "anyOf"
            out[keyword] = self._value(keyword, value, where, depth + 1)
        if self._may_close and _is_closable(out):
            out["additionalProperties"] = False
        return out

    def _value(self, keyword: str, value: Any, path: str, depth: int) -> Any:
        if keyword in _SCHEMA or (keyword == "items" and not isinstance(value, list)):
            return self.schema(value, path, depth)
        if keyword in _SCHEMAS or keyword == "items":
            if not isinstance(value, list):
                raise _wrong(path, "must be a list of schemas")
            return [self.schema(each, f"{path}[{i}]", depth) for i, each in enumerate(value)]
        if keyword in _NAMED:
            if not isinstance(value, dict):
                raise _wrong(path, "must be an object of schemas")
            return {
                name: self.schema(each, f"{path}.{name}", depth) for name, each in value.items()
            }
        _check_plain(keyword, value, path)
        if keyword == "$ref" and self._target(value) is None:
            raise _wrong(path, f"refers to nothing in this schema: {value[:200]!r}")
        return value

    # --- oneOf -----------------------------------------------------------------------------------

    def _check_one_of(self, branches: object, path: str) -> None:
        if not isinstance(branches, list):
            raise _wrong(path, "must be a list of schemas")
        seen: list[Schema] = []
        for index, branch in enumerate(branches):
            branch = self._resolved(branch)
            if len(branches) > 1 and any(not self._are_disjoint(branch, each) for each in seen):
                raise _wrong(
                    f"{path}[{index}]",
                    "oneOf is supported where types, constants or a required property's constants "
                    "tell its branches apart; write anyOf",
                )
            seen.append(branch)

    def _are_disjoint(self, one: Schema, other: Schema) -> bool:
        """Whether it can be seen that nothing matches both."""
        if not _kinds(one) & _kinds(other):
            return True
        ones, others = _constants(one), _constants(other)
        if ones is not None and others is not None:
            return not any(each in others for each in ones)
        if _kinds(one) != {"object"} or _kinds(other) != {"object"}:
            return False
        return any(
            self._are_told_apart(one, other, name)
            for name in set(_required(one)) & set(_required(other))
        )

    def _are_told_apart(self, one: Schema, other: Schema, name: str) -> bool:
        ones, others = (
            _constants(self._resolved(_properties(each).get(name))) for each in (one, other)
        )
        if ones is None or others is None:
            return False
        return not any(each in others for each in ones)

    def _resolved(self, schema: object) -> Schema:
        """A schema without references at its top."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict):
                return {}
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema
            schema = self._target(reference)
        return {}

    def _target(self, reference: object) -> object:
        """What a local reference (RFC 6901) names; None for nothing."""
        if reference == "#":
            return self._root
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return None
        target: Any = self._root
        for part in reference.removeprefix("#/").split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and key.isdecimal() and int(key[:9]) < len(target):
                target = target[int(key[:9])]
            elif isinstance(target, dict) and key in target:
                target = target[key]
            else:
                return None
        return target


def _check_plain(keyword: str, value: Any, path: str) -> None:
    """Keywords whose value is no schema."""
    if keyword in _NUMBERS:
        _expect(isinstance(value, int | float) and not isinstance(value, bool), path, "a number")
    elif keyword in _COUNTS:
        _expect(_is_count(value), path, "a whole number, 0 or more")
    elif keyword == "type":
        names = value if isinstance(value, list) else [value]
        known = all(isinstance(name, str) and name in _TYPES for name in names)
        _expect(known and bool(names), path, f"one of {', '.join(sorted(_TYPES))}, or a list")
    elif keyword == "format":
        known = isinstance(value, str) and value in FORMATS
        _expect(known, path, f"one of {', '.join(sorted(FORMATS))}")
    elif keyword == "enum":
        _expect(isinstance(value, list) and bool(value), path, "a list of values")
    elif keyword == "required":
        _expect(_are_strings(value), path, "a list of strings")
    elif keyword in ("pattern", "$ref"):
        _expect(isinstance(value, str), path, "a string")
    elif keyword not in _OTHERS:
        raise _wrong(path, "this keyword is not supported in a JSON schema")


_OPEN: Final = frozenset(  # beside which an object may have, or needs, other properties
    ("$ref", "anyOf", "additionalProperties", "minProperties", "patternProperties")
)


def _is_closable(schema: Schema) -> bool:
    """Whether an object with the declared properties and no others is all that one could want."""
    properties = schema.get("properties")
    return (
        isinstance(properties, dict)
        and not _OPEN & schema.keys()
        and set(_required(schema)) <= properties.keys()
    )


def _holds(value: object, *keywords: str) -> bool:
    """Whether any of these keys is anywhere inside."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case dict() as found:
                if any(keyword in found for keyword in keywords):
                    return True
                waiting += found.values()
            case list() as found:
                waiting += found
            case _:
                pass
    return False


def _is_harmless(keyword: str, value: object) -> bool:
    """Whether a keyword says nothing with this value."""
    return keyword in _HARMLESS and value == _HARMLESS[keyword]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _are_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _kinds(schema: Schema) -> set[str]:
    """Types that may match; integers are numbers."""
    stated = schema.get("type")
    names = stated if isinstance(stated, list) else [stated]
    kinds = {str(name) for name in names if name is not None} or set(_TYPES)
    kinds = {"number" if kind == "integer" else kind for kind in kinds}
    if (constants := _constants(schema)) is not None:
        kinds &= {kind for kind, _ in constants}
    return kinds


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"


def _constants(schema: Schema) -> list[tuple[str, Any]] | None:
    """The only values that can match, told apart as JSON does; None when they are not listed."""
    if "const" in schema:
        return [(_kind(schema["const"]), schema["const"])]
    values = schema.get("enum")
    return [(_kind(value), value) for value in values] if isinstance(values, list) else None


def _required(schema: Schema) -> Sequence[str]:
    names = schema.get("required")
    return names if _are_strings(names) and isinstance(names, list) else []


def _properties(schema: Schema) -> Schema:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _expect(is_right: bool, path: str, wanted: str) -> None:
    if not is_right:
        raise _wrong(path, f"must be {wanted}")


def _wrong(path: str, what: str) -> InvalidInput:
    return InvalidInput(f"Bad input: {path[:500]}: {what}", param=path[:500])
