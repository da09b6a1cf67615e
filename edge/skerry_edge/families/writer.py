"""Writes turns as a family's models do, for templates that do not, and as examples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from skerry_edge.families.family import CallStyle, Family
from skerry_edge.families.value_types import read_as_text

Call = tuple[str, Mapping[str, Any]]  # a tool's name and arguments
Schema = Mapping[str, Any]


def written_calls(
    family: Family,
    calls: Sequence[Call],
    *,
    ids: Sequence[str] = (),
    tools: Mapping[str, Schema] | None = None,
) -> str:
    """Return calls of one turn, as a reader is given them (`Family.spelled` writes them out).

    `ids` are theirs, for families that write them; `tools` are the parameters by name, by which
    texts are told from other values.
    """
    style = family.calls
    if style.encoding == "list":
        inside = style.between.join(_object(style, *call) for call in calls)
        return f"{style.begin}[{inside}]{style.end}"
    each = [
        style.begin + _body(style, name, arguments, number, ids, (tools or {}).get(name))
        + style.end
        for number, (name, arguments) in enumerate(calls)
    ]  # fmt: skip
    return style.section[0] + style.between.join(each) + style.section[1]


def _body(
    style: CallStyle,
    name: str,
    arguments: Mapping[str, Any],
    number: int,
    ids: Sequence[str],
    schema: Schema | None,
) -> str:
    said = style.prefix + name
    match style.encoding:
        case "head":
            if style.counts:
                said += f"{style.counts}{number}"
            if style.call_id:
                said += style.call_id + ids[number]
            return said + style.separator + _json(arguments)
        case "tags":
            values = [_tag(style, key, value, schema) for key, value in arguments.items()]
            return style.name[0] + said + style.name[1] + "".join(values)
        case "quoted":
            return said + _quoted(arguments, style.quote)
        case _:
            return _object(style, name, arguments)


def _tag(style: CallStyle, key: str, value: object, schema: Schema | None) -> str:
    is_text = isinstance(value, str) and (schema is None or read_as_text(schema, key))
    said = value if isinstance(value, str) and is_text else _json(value)
    return style.key[0] + key + style.key[1] + said + style.value_end


def _quoted(value: object, quote: str) -> str:
    match value:
        case str():
            return quote + value + quote
        case dict():
            pairs = [f"{key}:{_quoted(value[key], quote)}" for key in sorted(value)]
            return "{" + ",".join(pairs) + "}"
        case list():
            return "[" + ",".join(_quoted(each, quote) for each in value) + "]"
        case _:
            return _json(value)


def _object(style: CallStyle, name: str, arguments: Mapping[str, Any]) -> str:
    return style.head(name) + _json(arguments) + "}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
