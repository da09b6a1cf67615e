"""How a request wants its output to look: JSON mode, a schema, or one of the extensions.

`response_format` comes as OpenAI and Workers AI have it; `guided_json`, `guided_regex`,
`guided_choice` and `guided_grammar` as vLLM has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from skerry.errors import InvalidInput
from skerry_edge.output.asked import OutputAsked
from skerry_edge.output.one_of import Schema
from skerry_edge.output.schema import checked
from skerry_edge.output.unenforced import Unenforced
from skerry_regions.wire.protocol import MAX_GRAMMAR, GrammarSpec

MAX_CHOICES = 1000
ANY_OBJECT: Schema = {"type": "object"}
_WITHOUT = {"schema": ("text", "json_schema"), "json_schema": ("text", "json_object")}  # types


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """What the whole output must look like."""

    grammar: GrammarSpec
    is_json: bool = False


def output_format(
    request: OutputAsked, unenforced: Unenforced | None = None
) -> OutputFormat | None:
    """Return the format of a request's output; None is free text. For `unenforced` see `checked`:
    it is used where the caller said `strict: false`.

    Raises `InvalidInput`, naming the field, for one that is not supported or not alone.
    """
    kinds: dict[str, Callable[[Any], OutputFormat | None]] = {
        "response_format": partial(_response_format, unenforced=unenforced),
        "guided_json": _guided_json,
        "guided_regex": lambda regex: OutputFormat(_grammar("regex", regex, "guided_regex")),
        "guided_choice": _choice,
        "guided_grammar": _ebnf,
    }
    asked = {name: getattr(request, name) for name in kinds}
    made = {name: kinds[name](each) for name, each in asked.items() if each is not None}
    formats = {name: each for name, each in made.items() if each is not None}
    if len(formats) > 1:
        first, second, *_ = formats
        raise _wrong(second, f"cannot be combined with {first}")
    return next(iter(formats.values()), None)


def json_schema(
    schema: object,
    path: str,
    unenforced: Unenforced | None = None,
    *,
    is_strict: bool = False,
) -> OutputFormat:
    """Return output that is valid by a schema. Raises `InvalidInput`."""
    source = json.dumps(checked(schema, path, unenforced), ensure_ascii=False)
    return OutputFormat(_grammar("json_schema", source, path, is_strict=is_strict), is_json=True)


def _response_format(asked: dict[str, Any], unenforced: Unenforced | None) -> OutputFormat | None:
    if not asked:
        return None
    strict: object = None
    kind = asked.get("type")
    for name in ("schema", "json_schema"):
        if kind in _WITHOUT[name] and asked.get(name) is not None:
            raise _wrong(f"response_format.{name}", f"has no place beside the type {kind!r}")
    match kind:
        case "text":
            return None
        case "json_object":  # some clients put a schema beside it
            schema, path = asked.get("schema", ANY_OBJECT), "response_format.schema"
        case "json_schema":
            schema, path, strict = _enveloped(asked.get("json_schema"))
        case other:
            known = "'text', 'json_object' or 'json_schema'"
            raise _wrong("response_format.type", f"must be {known}, got {str(other)[:40]!r}")
    lenient = unenforced if strict is False else None
    return json_schema(schema, path, lenient, is_strict=strict is True)


def _enveloped(value: object) -> tuple[object, str, object]:
    """Return the schema itself, as Workers AI has it or inside OpenAI's `{name, strict, schema}`,
    its path, and what the caller says of `strict`."""
    path = "response_format.json_schema"
    if isinstance(value, dict) and isinstance(value.get("schema"), dict):
        strict = value.get("strict")
        if not isinstance(strict, bool | None):
            raise _wrong(f"{path}.strict", "must be true or false")
        return value["schema"], f"{path}.schema", strict
    return value, path, None


def _guided_json(schema: dict[str, Any] | str) -> OutputFormat:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise _wrong("guided_json", "is not JSON") from None
    return json_schema(schema, "guided_json")


def _choice(choices: list[str]) -> OutputFormat:
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise _wrong("guided_choice", f"must have 1 to {MAX_CHOICES} entries")
    lark = "start: " + " | ".join(json.dumps(choice) for choice in dict.fromkeys(choices))
    return OutputFormat(_grammar("ebnf", lark, "guided_choice"))


def _ebnf(source: str) -> OutputFormat:
    for directive in ("%json", "%llguidance"):  # schemas in it would not be checked
        if directive in source:
            raise _wrong("guided_grammar", f"{directive} is not supported")
    return OutputFormat(_grammar("ebnf", source, "guided_grammar"))


def _grammar(kind: Any, source: str, path: str, *, is_strict: bool = False) -> GrammarSpec:
    if len(source.encode("utf-8", "surrogatepass")) > MAX_GRAMMAR:
        raise _wrong(path, f"is longer than {MAX_GRAMMAR} bytes")
    try:
        source.encode()
    except UnicodeEncodeError:
        raise _wrong(path, "holds a lone surrogate (U+D800 to U+DFFF)") from None
    return GrammarSpec(kind=kind, source=source, strict=is_strict)


def _wrong(path: str, what: str) -> InvalidInput:
    return InvalidInput(f"Bad input: {path}: {what}", param=path)
