"""Keywords of JSON Schema: by what their value is, and what of them grammars can hold."""

from __future__ import annotations

from typing import Any, Final

from skerry.errors import InvalidInput
from skerry_edge.output.one_of import TYPES
from skerry_edge.output.unenforced import Path, joined

EXACT: Final = (1 << 53) - 1  # beyond, grammars take integers for the nearest double

FORMATS: Final = frozenset(  # that are enforced
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
)
# Keywords by what their value is.
ONE: Final = frozenset(("additionalItems", "additionalProperties"))
LISTED: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
NAMED: Final = frozenset(("$defs", "definitions", "patternProperties", "properties"))
_NUMBERS: Final = frozenset(
    ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")
)
_COUNTS: Final = frozenset(
    ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")
)
_OTHERS: Final = frozenset(
    ("$ref", "const", "enum", "format", "items", "pattern", "required", "type")
)
KNOWN: Final = ONE | LISTED | NAMED | _NUMBERS | _COUNTS | _OTHERS
ANNOTATIONS: Final = frozenset(  # say nothing of what is valid
    (
        *("$anchor", "$comment", "$dynamicAnchor", "$id", "$schema", "$vocabulary", "default"),
        *("deprecated", "description", "discriminator", "example", "examples", "externalDocs"),
        *("nullable", "readOnly", "title", "writeOnly", "xml"),
        *("contentEncoding", "contentMediaType", "contentSchema"),
    )
)
_HARMLESS: Final = {"uniqueItems": False, "propertyNames": {"type": "string"}}
OPENAPI_FLAGS: Final = {"exclusiveMaximum": "maximum", "exclusiveMinimum": "minimum"}
COMBINED: Final = frozenset(  # beside which others than the declared properties may be evaluated
    ("$dynamicRef", "$ref", "allOf", "anyOf", "dependentSchemas", "if", "oneOf")
)


def check_plain(keyword: str, value: Any, path: Path) -> None:
    """Check keywords whose value is no schema."""
    if keyword in _NUMBERS:
        _expect(isinstance(value, int | float) and not isinstance(value, bool), path, "a number")
    elif keyword in _COUNTS:
        _expect(_is_count(value), path, "a whole number, 0 or more")
    elif keyword == "type":
        names = value if isinstance(value, list) else [value]
        known = all(isinstance(name, str) and name in TYPES for name in names)
        _expect(known and bool(names), path, f"one of {', '.join(sorted(TYPES))}, or a list")
    elif keyword == "enum":
        _expect(isinstance(value, list) and bool(value), path, "a list of values")
    elif keyword == "required":
        _expect(_are_strings(value), path, "a list of strings")
    elif keyword in ("format", "pattern", "$ref"):
        _expect(isinstance(value, str), path, "a string")


def is_huge(value: object) -> bool:
    """Return whether a bound is one that grammars round."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) > EXACT


def holds_inexact(value: object) -> bool:
    """Return whether any integer inside is none that a double is."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case int() as number if abs(number) > EXACT and not _is_double(number):
                return True
            case dict() as found:
                waiting += found.values()
            case list() as found:
                waiting += found
            case _:
                pass
    return False


def _is_double(number: int) -> bool:
    try:
        return int(float(number)) == number
    except OverflowError:
        return False


def is_harmless(keyword: str, value: object) -> bool:
    """Return whether a keyword says nothing with this value."""
    return keyword in _HARMLESS and value == _HARMLESS[keyword]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _are_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _expect(is_right: bool, path: Path, wanted: str) -> None:
    if not is_right:
        raise wrong(path, f"must be {wanted}")


def wrong(path: Path, what: str) -> InvalidInput:
    """Return the error of something in a schema."""
    where = joined(path)
    return InvalidInput(f"Bad input: {where}: {what}", param=where)
