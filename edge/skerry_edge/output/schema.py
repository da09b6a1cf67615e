"""JSON schemas that callers write, checked before anything is built from them.

A keyword that would not be enforced is refused by its path, never ignored: what comes out then
holds what the schema says. Of a tool that does not say `strict: true` it is dropped, and named
(`Unenforced`). `oneOf` is enforced where at most one branch can match: it is then `anyOf`, which is
what a grammar can do. An object that declares its properties and says nothing of others gets no
others, which is as valid, and what callers mean.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from skerry_edge.output.keywords import (
    ANNOTATIONS,
    COMBINED,
    FORMATS,
    KNOWN,
    LISTED,
    NAMED,
    ONE,
    OPENAPI_FLAGS,
    check_plain,
    holds_inexact,
    is_harmless,
    is_huge,
    wrong,
)
from skerry_edge.output.one_of import Branches, BranchOverlap, Schema, required_of
from skerry_edge.output.patterns import PatternFault, pattern_fault
from skerry_edge.output.unenforced import Path, Unenforced

MAX_DEPTH: Final = 64  # of schemas in schemas
MAX_SCHEMAS: Final = 10_000  # in one
Container = Literal["schema", "schemas"]
_ANYTHING: Final[Schema] = {}  # where a reference leads nowhere


def checked(schema: object, path: str, unenforced: Unenforced | None = None) -> Schema:
    """Return a copy of a schema in the form that grammars take.

    What cannot be enforced is left out and added to `unenforced`. Without it that raises
    `InvalidInput`, naming the path; so does what is no schema.
    """
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise wrong(path, "a JSON schema must be an object")
    try:
        return _Checker(schema, unenforced).lowered(path)
    except RecursionError:  # of what is in a constant
        raise wrong(path, "nested too deeply") from None


class _Checker:
    """One schema, with the definitions that it refers to."""

    def __init__(self, root: Schema, unenforced: Unenforced | None) -> None:
        self._root = root
        self._unenforced = unenforced
        self._count = 0
        self._references = _References(root)
        self._branches = Branches(self._references.resolved)
        self._closable: list[Schema] = []
        self._is_combined = False  # schemas must leave room for each other's properties

    def lowered(self, path: Path) -> Schema:
        lowered: Schema = self.schema(self._root, path, 0)
        if not self._is_combined:
            for schema in self._closable:
                schema["additionalProperties"] = False
        return lowered

    def schema(self, schema: object, path: Path, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise wrong(path, "a schema must be an object or a boolean")
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_SCHEMAS:
            raise wrong(path, f"more than {MAX_DEPTH} levels or {MAX_SCHEMAS} schemas")
        out: Schema = {}
        for keyword, value in schema.items():
            where = (path, f".{keyword}")
            if keyword in ANNOTATIONS or keyword.startswith("x-"):
                continue
            if keyword in OPENAPI_FLAGS and isinstance(value, bool):
                continue
            if keyword == "unevaluatedProperties" and not COMBINED & schema.keys():
                keyword = "additionalProperties"  # which it then is, unless that is there
                value = schema.get(keyword, value)
            if is_harmless(keyword, value) or self._is_left_out(schema, keyword, value, where):
                continue
            if keyword == "oneOf":
                self._check_one_of(value, where)
                keyword = "anyOf"
            out[keyword] = self._value(keyword, value, where, depth + 1)
        _follow_openapi(out, schema)
        self._is_combined = self._is_combined or "allOf" in out or "$dynamicRef" in schema
        if _is_closable(out):
            self._closable.append(out)
        return out

    def _is_left_out(self, schema: Schema, keyword: str, value: Any, path: Path) -> bool:
        """Return whether a keyword cannot be enforced. Raises `InvalidInput` where it must be."""
        match keyword:
            case "oneOf" if "anyOf" in schema:
                why = "oneOf beside anyOf is not supported"
            case "format" if isinstance(value, str) and value not in FORMATS:
                why = f"must be one of {', '.join(sorted(FORMATS))}"
            case "pattern" if isinstance(value, str) and (fault := self._fault(value)) is not None:
                why = f"the pattern /{value[:200]}/ cannot be enforced: {fault.what}"
            case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" if is_huge(value):
                why = "a bound beyond 2^53 cannot be held exactly"
            case "const" | "enum" if holds_inexact(value):
                why = "an integer beyond 2^53 cannot be written exactly"
            case "$ref" if isinstance(value, str) and not value.startswith("#"):
                why = f"refers to another document: {value[:200]!r}"
            case _ if keyword not in KNOWN:
                why = "this keyword is not supported in a JSON schema"
            case _:
                return False
        if self._unenforced is None:
            raise wrong(path, why)
        self._unenforced.add(path)
        return True

    def _fault(self, pattern: str) -> PatternFault | None:
        """Return why a pattern is left out, or refused. One that is only not known may still
        compile, and is refused by the node if it does not."""
        fault = pattern_fault(pattern)
        is_refused = fault is not None and (fault.is_certain or self._unenforced is not None)
        return fault if is_refused else None

    def _value(self, keyword: str, value: Any, path: Path, depth: int) -> Any:
        if keyword in ONE or (keyword == "items" and not isinstance(value, list)):
            return self.schema(value, path, depth)
        if keyword in LISTED or keyword == "items":
            if not isinstance(value, list):
                raise wrong(path, "must be a list of schemas")
            return [self.schema(each, (path, f"[{i}]"), depth) for i, each in enumerate(value)]
        if keyword in NAMED:
            if not isinstance(value, dict):
                raise wrong(path, "must be an object of schemas")
            return {
                name: self.schema(each, (path, f".{name}"), depth)
                for name, each in value.items()
                if keyword != "patternProperties" or not self._is_left_out_name(name, path)
            }
        check_plain(keyword, value, path)
        if keyword == "$ref":
            if (target := self._references.target(str(value))) is None:
                raise wrong(path, f"refers to no schema in this one: {value[:200]!r}")
            return target.pointer
        return value

    def _is_left_out_name(self, pattern: str, path: Path) -> bool:
        """Return the same of a pattern of names."""
        return self._is_left_out({}, "pattern", pattern, (path, f".{pattern}"))

    def _check_one_of(self, branches: object, path: Path) -> None:
        if not isinstance(branches, list):
            raise wrong(path, "must be a list of schemas")
        if len(branches) < 2:
            return
        try:
            self._branches.check(branches)
        except BranchOverlap as overlap:
            if self._unenforced is not None:  # it is anyOf
                self._unenforced.add(path)
                return
            raise wrong(
                (path, f"[{overlap.index}]"),
                "oneOf is supported where types, constants or a required property's constants "
                "tell its branches apart; write anyOf",
            ) from None


class _Target(NamedTuple):
    """What a reference names, and where that is in the schema that is returned."""

    schema: object
    pointer: str


class _References:
    """The schemas that local references of one schema name."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._targets: dict[str, _Target | None] = {}

    def resolved(self, schema: object) -> Schema:
        """Return a schema without references at its top."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict):
                return _ANYTHING
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema
            target = self.target(reference)
            schema = None if target is None else target.schema
        return _ANYTHING

    def target(self, reference: str) -> _Target | None:
        """Return the schema that a local reference (RFC 6901) names; None for nothing."""
        if reference not in self._targets:
            self._targets[reference] = self._found(reference)
        return self._targets[reference]

    def _found(self, reference: str) -> _Target | None:
        root, *parts = reference.split("/")
        if root != "#":
            return None
        target: Any = self._root
        inside: Container = "schema"
        for place, part in enumerate(parts):
            key = part.replace("~1", "/").replace("~0", "~")
            holder = target
            if isinstance(target, list) and key.isdecimal() and int(key[:9]) < len(target):
                target = target[int(key[:9])]
            elif isinstance(target, dict) and key in target:
                target = target[key]
            else:
                return None
            if inside != "schema":
                inside = "schema"
            elif (found := _container(key, target)) is None:
                return None
            else:
                inside = found
                if key == "oneOf":
                    if "anyOf" in holder:
                        return None  # it is left out
                    parts[place] = "anyOf"
        return _Target(target, "/".join((root, *parts))) if inside == "schema" else None


def _container(keyword: str, value: object) -> Container | None:
    """Return what a keyword's value is; None where there is no schema in it."""
    if keyword in ONE or (keyword == "items" and not isinstance(value, list)):
        return "schema"
    return "schemas" if keyword in LISTED | NAMED or keyword == "items" else None


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


def _follow_openapi(out: Schema, schema: Schema) -> None:
    """Give flags of OpenAPI 3.0 their meaning, which JSON Schema writes as a type and as bounds."""
    names = out.get("type")
    if schema.get("nullable") is True and names is not None:
        named = names if isinstance(names, list) else [names]
        out["type"] = [*named, *(["null"] if "null" not in named else [])]
    for flag, bound in OPENAPI_FLAGS.items():
        if schema.get(flag) is True and bound in out:
            out[flag] = out.pop(bound)
