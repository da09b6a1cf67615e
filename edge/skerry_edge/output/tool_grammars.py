"""Grammars of tool calls, in the form that a family of models writes them."""

from __future__ import annotations

import json
import re

from skerry_edge.output.format import OutputFormat
from skerry_edge.output.one_of import Schema
from skerry_edge.output.tools import JSON_STYLE, Family, Tool, Toolbox, invalid_tools
from skerry_regions.wire.protocol import MAX_GRAMMAR, GrammarSpec


def tool_grammar(
    family: Family, box: Toolbox, wanted: OutputFormat | None = None
) -> GrammarSpec | None:
    """Return what the output may be: calls, or text, or what `wanted` says in its place.

    Raises `InvalidInput` when all of it is too long, or for a format that is not JSON.
    """
    if box.choice == "none":
        return wanted.grammar if wanted is not None else _only_text(family)
    rules = [f"call_{i}: {_call(family, tool)}" for i, tool in enumerate(box.tools)]
    rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(box.tools))))
    rules += _start(family, box, wanted)
    source = "\n".join(rules)
    if len(source.encode("utf-8", "surrogatepass")) > MAX_GRAMMAR:
        raise invalid_tools("tools", f"all tools together are longer than {MAX_GRAMMAR} bytes")
    strict = any(tool.is_strict for tool in box.tools)
    strict = strict or (wanted is not None and wanted.grammar.strict)
    calls = family.mark if box.choice == "auto" and wanted is None else None
    return GrammarSpec(kind="ebnf", source=source, strict=strict, calls=calls)


def _start(family: Family, box: Toolbox, wanted: OutputFormat | None) -> list[str]:
    several = box.is_parallel and bool(family.begin)
    calls = _calls(family, several=several)
    if box.choice == "required":
        return ["start: calls", calls]
    if wanted is not None:
        return [f"start: calls | {_json_rule(wanted)}", calls]
    if family.mark_id is not None:  # no text can hold the mark, which is no text
        return ["start: text calls?", calls, *_text(family)]
    if not family.begin:  # text is what does not look like a call
        return ["start: call | text", "text: TEXT", "TEXT: /([^{](.|\\n)*)?/"]
    rest, end = json.dumps(family.begin.removeprefix(family.trigger)), json.dumps(family.end)
    return [
        "start: marked* text" if several else "start: marked | text",
        f"marked: trigger {rest} call {end}",
        f"trigger[lazy]: ANY {json.dumps(family.trigger)}",  # ends it as soon as it is there
        *_text(family),
    ]


def _calls(family: Family, *, several: bool) -> str:
    """Return the rule of calls that stand together."""
    if family.is_list:
        more = ' (", " call)*' if several else ""
        return f'calls: <[{family.mark_id}]> ("[" | " [") call{more} "]"'
    begin, end = json.dumps(family.begin), json.dumps(family.end)
    more = f' ("\\n" {begin} call {end})*' if several else ""
    return f"calls: {begin} call {end}{more}"


def _json_rule(wanted: OutputFormat | None) -> str:
    if wanted is None or not wanted.is_json:
        raise invalid_tools("tools", "beside tools the output can be JSON or text, nothing else")
    return _json(json.loads(wanted.grammar.source))


def _call(family: Family, tool: Tool) -> str:
    head = json.dumps(family.head(tool.name), ensure_ascii=False)
    return f'{head} {_json(tool.parameters)} "}}"'


def _json(schema: Schema) -> str:
    return "%json " + json.dumps(schema | {"x-guidance": JSON_STYLE}, ensure_ascii=False)


def _only_text(family: Family) -> GrammarSpec | None:
    if not family.trigger:
        return None
    return GrammarSpec(kind="ebnf", source="\n".join(["start: text", *_text(family)]))


def _text(family: Family) -> list[str]:
    """Return the rules of text, which holds no mark and does not end in a part of one."""
    mark = family.trigger
    parts = "|".join(re.escape(mark[:size]) for size in range(1, len(mark)))
    return [
        "text: TEXT",
        "ANY: /(?s:.*)/",
        f"TEXT: ANY & ~/(?s:.*{re.escape(mark)}.*)/ & ~/(?s:.*)({parts})/",
    ]
