"""Short values that a lowered grammar is known to allow, for the way to an output's end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from skerry_core.grammar.sample import pattern_samples
from skerry_core.grammar.shortest import shortest_values

MAX_VALUES: Final = 2048  # of one grammar
MAX_CHARACTERS: Final = 131_072  # of them all
ANY_JSON: Final = ("null", "true", "0", '""', "[]", "{}")

_JSON_RULE: Final = re.compile(r"%json\s*")
_LITERAL: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_decoder: Final = json.JSONDecoder()


def known_values(lowered: str) -> tuple[list[str], bool]:
    """Return them, and whether they are JSON. Shorter ones come first where they are too many."""
    try:
        grammars: Any = json.loads(lowered)["grammars"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return _of_lark(lowered)
    schema = grammars[0].get("json_schema")
    if schema is not None:
        return _limited([*ANY_JSON, *shortest_values(schema)]), True
    expression = str(grammars[0].get("lark_grammar"))
    pattern = expression.removeprefix("start: /").removesuffix("/").replace("\\/", "/")
    return _limited(pattern_samples(pattern)), False


def _of_lark(source: str) -> tuple[list[str], bool]:
    """Return those of the JSON schemas in Lark's notation; without any, its literal texts."""
    schemas = list(_schemas(source))
    if schemas:
        values = (value for schema in schemas for value in shortest_values(schema))
        return _limited([*ANY_JSON, *values]), True
    return _limited(list(_literals(source))), False


def _schemas(source: str) -> Iterator[Any]:
    for found in _JSON_RULE.finditer(source):
        try:
            yield _decoder.raw_decode(source, found.end())[0]
        except (ValueError, RecursionError):
            continue


def _literals(source: str) -> Iterator[str]:
    for found in _LITERAL.finditer(source):
        try:
            yield json.loads(found[0])
        except ValueError:
            continue


def _limited(values: list[str]) -> list[str]:
    kept: list[str] = []
    room = MAX_CHARACTERS
    for value in sorted(dict.fromkeys(values), key=len)[:MAX_VALUES]:
        room -= len(value)
        if room < 0:
            break
        kept.append(value)
    return kept
