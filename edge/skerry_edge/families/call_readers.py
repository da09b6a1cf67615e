"""Calls as each encoding writes them, read from a source as name and JSON arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from skerry_edge.families.family import CallStyle
from skerry_edge.families.source import BLANK, BadMarkup, Source, Waits
from skerry_edge.families.value_types import read_as_text, typed_json

Schema = Mapping[str, Any]


class CallSink(Protocol):
    """Takes a call as it comes."""

    def begin_call(self, name: str) -> None: ...
    def add_arguments(self, text: str) -> None: ...
    def end_call(self) -> None: ...


def read_calls(
    source: Source, style: CallStyle, tools: Mapping[str, Schema], sink: CallSink
) -> Waits[None]:
    """Read from behind the trigger to the end of what it began: one call, or a section of them.

    Raises `BadMarkup`.
    """
    if style.encoding == "list":
        yield from source.expect(style.begin.removeprefix(style.trigger))
        yield from _list(source, style, sink)
        yield from source.expect(style.end)
        return
    if not style.section[0]:
        yield from source.expect(style.begin.strip(BLANK).removeprefix(style.trigger))
        yield from _call(source, style, tools, sink)
        return
    first, section_end = style.begin.split()[0], style.section[1].strip(BLANK)
    while (yield from source.one_of(first, section_end)) == first:
        yield from source.expect(style.begin.strip(BLANK).removeprefix(first))
        yield from _call(source, style, tools, sink)


def _call(
    source: Source, style: CallStyle, tools: Mapping[str, Schema], sink: CallSink
) -> Waits[None]:
    match style.encoding:
        case "json":
            yield from _object(source, style, sink)
            yield from source.expect(style.end)
        case "head":
            yield from _headed(source, style, sink)
            yield from source.expect(style.end)
        case "tags":
            yield from _tagged(source, style, tools, sink)
        case _:
            name, _ = yield from source.up_to("{", keep=True)
            sink.begin_call(name.strip(BLANK).removeprefix(style.prefix))
            yield from _quoted(source, style.quote, sink.add_arguments)
            sink.end_call()
            yield from source.expect(style.end)


def _list(source: Source, style: CallStyle, sink: CallSink) -> Waits[None]:
    yield from source.expect("[")
    while (yield from source.blanks()) != "]":
        if source.text.startswith(","):
            source.take(1)
        else:
            yield from _object(source, style, sink)
    source.take(1)


def _object(source: Source, style: CallStyle, sink: CallSink) -> Waits[None]:
    """Read `{"name": N, KEY: {…}}`, the keys in any order and others beside them."""
    yield from source.expect("{")
    name, arguments = "", ""
    while (yield from source.blanks()) != "}":
        if source.text.startswith(","):
            source.take(1)
            continue
        key = yield from source.json_string()
        yield from source.expect(":")
        first = yield from source.blanks()
        if key == "name" and not name:
            name = yield from source.json_string()
            sink.begin_call(name)
            if arguments:
                sink.add_arguments(arguments)
        elif key != style.arguments_key:
            yield from source.json_value(_ignore)
        elif first == '"':  # JSON within JSON, as OpenAI's own wire has it
            arguments = yield from source.json_string()
            if name:
                sink.add_arguments(arguments)
        elif name:
            arguments = "{}"
            yield from source.json_value(sink.add_arguments)
        else:
            pieces: list[str] = []
            yield from source.json_value(pieces.append)
            arguments = "".join(pieces)
    source.take(1)
    if not name:
        raise BadMarkup
    if not arguments:
        sink.add_arguments("{}")
    sink.end_call()


def _headed(source: Source, style: CallStyle, sink: CallSink) -> Waits[None]:
    marks = [style.separator.strip(BLANK)]
    if style.call_id:
        marks.append(style.call_id)
    name, mark = yield from source.up_to(*marks)
    if mark == style.call_id:
        yield from source.up_to(marks[0])
    name = name.strip(BLANK).removeprefix(style.prefix)
    if style.counts:
        name = name.rpartition(style.counts)[0] or name
    sink.begin_call(name)
    if (yield from source.blanks()) != "{":
        raise BadMarkup
    yield from source.json_value(sink.add_arguments)
    sink.end_call()


def _tagged(
    source: Source, style: CallStyle, tools: Mapping[str, Schema], sink: CallSink
) -> Waits[None]:
    yield from source.expect(style.name[0])
    first, *rest = style.end.split()
    key_begin, value_end = style.key[0], style.value_end.rstrip(BLANK)
    if style.name[1].strip(BLANK):
        name, _ = yield from source.up_to(style.name[1].strip(BLANK))
    else:
        name, _ = yield from source.up_to(key_begin, first, keep=True)
    name = name.strip(BLANK)
    sink.begin_call(name)
    schema, opening = tools.get(name, {}), "{"
    while (yield from source.one_of(key_begin, first)) == key_begin:
        key, _ = yield from source.up_to(style.key[1])
        sink.add_arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
        opening = ", "
        if read_as_text(schema, key):
            sink.add_arguments('"')
            yield from source.stream_up_to(
                value_end, lambda text: sink.add_arguments(_escaped(text))
            )
            sink.add_arguments('"')
        else:
            value, _ = yield from source.up_to(value_end)
            sink.add_arguments(typed_json(schema, key, value))
    sink.add_arguments("{}" if opening == "{" else "}")
    sink.end_call()
    yield from source.expect(" ".join(rest))


def _quoted(source: Source, quote: str, tell: Callable[[str], None]) -> Waits[None]:
    """Read a value whose keys are bare and whose texts stand between quotes, as JSON."""
    first = yield from source.blanks()
    if first in "{[":
        source.take(1)
        tell(first)
        closing, is_empty = {"{": "}", "[": "]"}[first], True
        while (yield from source.blanks()) != closing:
            if source.text.startswith(","):
                source.take(1)
                continue
            tell("" if is_empty else ", ")
            is_empty = False
            if first == "{":
                yield from _quoted_key(source, quote, tell)
            yield from _quoted(source, quote, tell)
        source.take(1)
        tell(closing)
    elif (yield from _begins(source, quote)):
        tell('"')
        yield from source.stream_up_to(quote, lambda text: tell(_escaped(text)))
        tell('"')
    else:
        value, _ = yield from source.up_to(",", "}", "]", keep=True)
        tell(typed_json({}, "", value))


def _quoted_key(source: Source, quote: str, tell: Callable[[str], None]) -> Waits[None]:
    if (yield from _begins(source, quote)):
        key, _ = yield from source.up_to(quote)
        yield from source.expect(":")
    else:
        key, _ = yield from source.up_to(":")
    tell(f"{json.dumps(key.strip(BLANK), ensure_ascii=False)}: ")


def _begins(source: Source, mark: str) -> Waits[bool]:
    """Return whether a mark comes next; it is read then."""
    while len(source.text) < len(mark) and mark.startswith(source.text):
        yield
    is_there = source.text.startswith(mark)
    source.take(len(mark) if is_there else 0)
    return is_there


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _ignore(_: str) -> None:
    """Drop a part of a value that is none of a call's."""
