"""JSON schemas that callers write, checked before anything is built from them.

A keyword that would not be enforced is refused by its path, never ignored: what comes out then
holds what the schema says. `oneOf` is enforced where at most one branch can match: it is then
`anyOf`, which is what a grammar can do. An object that declares its properties and says nothing of
others gets no others, which is as valid, and what callers mean.
"""

from __future__ import annotations

from typing import Any, Final

from skerry.errors import InvalidInput
from skerry_edge.output.one_of import TYPES, Branches, BranchOverlap, Schema, required_of

MAX_DEPTH: Final = 64  # of schemas in schemas
MAX_SCHEMAS: Final = 10_000  # in one
MAX_WHERE: Final = 500  # characters of a path in a message

Path = tuple["Path", str] | str
"""Where something is in a request: joined only for a message, since long names make long paths."""

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
_ANYTHING: Final[Schema] = {}  # where a reference leads nowhere


def checked(schema: object, path: str) -> Schema:
    """Return a copy of a schema in the form that grammars take.

    Raises `InvalidInput`, naming the path, for what cannot be enforced.
    """
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise _wrong(path, "a JSON schema must be an object")
    try:
        lowered: Schema = _Checker(schema).schema(schema, path, 0)
    except RecursionError:  # of what is in a constant
        raise _wrong(path, "nested too deeply") from None
    return lowered


class _Checker:
    """One schema, with the definitions that it refers to."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._count = 0
        self._targets: dict[str, object] = {}  # of references
        self._branches = Branches(self._resolved)
        # Schemas that are combined must leave room for each other's properties.
        self._may_close = not _holds(root, "allOf", "$dynamicRef")

    def schema(self, schema: object, path: Path, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise _wrong(path, "a schema must be an object or a boolean")
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_SCHEMAS:
            raise _wrong(path, f"more than {MAX_DEPTH} levels or {MAX_SCHEMAS} schemas")
        out: Schema = {}
        for keyword, value in schema.items():
            where = (path, f".{keyword}")
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

    def _value(self, keyword: str, value: Any, path: Path, depth: int) -> Any:
        if keyword in _SCHEMA or (keyword == "items" and not isinstance(value, list)):
            return self.schema(value, path, depth)
        if keyword in _SCHEMAS or keyword == "items":
            if not isinstance(value, list):
                raise _wrong(path, "must be a list of schemas")
            return [self.schema(each, (path, f"[{i}]"), depth) for i, each in enumerate(value)]
        if keyword in _NAMED:
            if not isinstance(value, dict):
                raise _wrong(path, "must be an object of schemas")
            return {
                name: self.schema(each, (path, f".{name}"), depth) for name, each in value.items()
            }
        _check_plain(keyword, value, path)
        if keyword == "$ref" and isinstance(value, str) and self._target(value) is None:
            raise _wrong(path, f"refers to nothing in this schema: {value[:200]!r}")
        return value

    # --- oneOf and references --------------------------------------------------------------------

    def _check_one_of(self, branches: object, path: Path) -> None:
        if not isinstance(branches, list):
            raise _wrong(path, "must be a list of schemas")
        if len(branches) < 2:
            return
        try:
            self._branches.check(branches)
        except BranchOverlap as overlap:
            raise _wrong(
                (path, f"[{overlap.index}]"),
                "oneOf is supported where types, constants or a required property's constants "
                "tell its branches apart; write anyOf",
            ) from None

    def _resolved(self, schema: object) -> Schema:
        """Return a schema without references at its top."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict):
                return _ANYTHING
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema
            schema = self._target(reference)
        return _ANYTHING

    def _target(self, reference: str) -> object:
        """Return what a local reference (RFC 6901) names; None for nothing."""
        if reference not in self._targets:
            self._targets[reference] = self._found(reference)
        return self._targets[reference]

    def _found(self, reference: str) -> object:
        if reference == "#":
            return self._root
        if not reference.startswith("#/"):
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


def _check_plain(keyword: str, value: Any, path: Path) -> None:
    """Check keywords whose value is no schema."""
    if keyword in _NUMBERS:
        _expect(isinstance(value, int | float) and not isinstance(value, bool), path, "a number")
    elif keyword in _COUNTS:
        _expect(_is_count(value), path, "a whole number, 0 or more")
    elif keyword == "type":
        names = value if isinstance(value, list) else [value]
        known = all(isinstance(name, str) and name in TYPES for name in names)
        _expect(known and bool(names), path, f"one of {', '.join(sorted(TYPES))}, or a list")
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
    """Return whether an object with the declared properties and no others is all that one could
    want."""
    properties = schema.get("properties")
    return (
        isinstance(properties, dict)
        and not _OPEN & schema.keys()
        and set(required_of(schema)) <= properties.keys()
    )


def _holds(value: object, *keywords: str) -> bool:
    """Return whether any of these keys is anywhere inside."""
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
    """Return whether a keyword says nothing with this value."""
    return keyword in _HARMLESS and value == _HARMLESS[keyword]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _are_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _expect(is_right: bool, path: Path, wanted: str) -> None:
    if not is_right:
        raise _wrong(path, f"must be {wanted}")


def _wrong(path: Path, what: str) -> InvalidInput:
    where = _joined(path)
    return InvalidInput(f"Bad input: {where}: {what}", param=where)


def _joined(path: Path) -> str:
    """Return a path as text, the beginning of a long one."""
    parts: list[str] = []
    while not isinstance(path, str):
        path, part = path
        parts.append(part[:MAX_WHERE])
    return "".join([path, *reversed(parts)])[:MAX_WHERE]
