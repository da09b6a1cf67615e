"""Two tools, what becomes of them in a family of models, and calls of them as it writes them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from tests.core.byte_grammars import MARK, compiled
from tests.core.schemas import Schema

from skerry.wire import Message
from skerry.wire.openai import ChatCompletionRequest
from skerry_core.grammar.matcher import GrammarError
from skerry_edge.families.deltas import CallDelta, Calls, TextDelta
from skerry_edge.families.family import Family, ReaderSpec
from skerry_edge.families.reader import Reader
from skerry_edge.families.recognition import family_of
from skerry_edge.families.table import MISTRAL_LIST, TAUGHT
from skerry_edge.output.asked import OutputAsked
from skerry_edge.output.plan import OutputPlan, plan_fields

WEATHER: Schema = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}, "unit": {"enum": ["c", "f"]}},
    "required": ["city", "unit"],
}
ADD: Schema = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "integer"}}},
    "required": ["a"],
}
NESTED = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": ADD}},
]
FLAT = [{"name": "weather", "parameters": WEATHER}, {"name": "add", "parameters": ADD}]
SCHEMAS = {"weather": WEATHER, "add": ADD}


class Template:
    """As much of a `TextModel` as families are told by."""

    def __init__(self, family: Family) -> None:
        self.chat_template = {
            "taught": None,
            "hermes": '{% if tools %}<tool_call>"arguments"{% endif %}{{ m.tool_calls }}',
            "llama": '{% if tools %}"parameters" ipython{% endif %}{{ m.tool_calls }}',
            "mistral-v7": "{{ tools }}[TOOL_CALLS]{{ m.tool_calls }}",
        }[family.name]

    def control_id(self, text: str) -> int | None:
        return MARK if text == "[TOOL_CALLS]" else None


def plan(family: Family = TAUGHT, **fields: Any) -> OutputPlan:
    messages = [Message("user", "hi")]
    request = ChatCompletionRequest(model="m", messages=messages, **fields)
    template = Template(family)
    asked = msgspec.convert(request, OutputAsked, from_attributes=True)
    return plan_fields(family_of(template.chat_template, template.control_id), asked)


def parsed(family: Family, output: str, sizes: list[int] | None = None) -> tuple[str, Calls]:
    """Text and calls of an output that comes in pieces of these sizes."""
    reader, calls, said = Reader(ReaderSpec(family=family, tools=SCHEMAS)), Calls(), ""
    if family.token_ids:
        output = output.replace("[TOOL_CALLS]", TOKEN)  # as a reader is given it
    rest, sizes = output, sizes or [len(output)]
    deltas = []
    while rest:
        size = sizes.pop(0) if sizes else 1
        piece, rest = rest[:size], rest[size:]
        deltas += reader.push(piece)
    for delta in [*deltas, *reader.finish()]:
        match delta:
            case TextDelta(text):
                said += text
            case CallDelta():
                calls.add([delta])
            case _:
                raise AssertionError(delta)
    return said, calls


def accepts(plan: OutputPlan, output: str) -> bool:
    """Whether the grammar takes a whole output."""
    assert plan.grammar is not None
    grammar = compiled(plan.grammar.kind, plan.grammar.source)
    try:
        return grammar.matcher(token_ids(output))._matcher.is_accepting()
    except GrammarError:
        return False


def token_ids(output: str) -> list[int]:
    """Bytes, and Mistral's mark as the one token that it is."""
    pieces = output.split("[TOOL_CALLS]")
    return [id_ for piece in pieces for id_ in (MARK, *piece.encode())][1:]


def call(name: str, arguments: object, family: Family = TAUGHT) -> str:
    style = family.calls
    return f"{style.begin}{style.head(name)}{json.dumps(arguments)}}}{style.end}"


def listed(*calls: tuple[str, object]) -> str:
    """Calls as Mistral writes them."""
    each = [
        f'{{"name": {json.dumps(name)}, "arguments": {json.dumps(arguments)}}}'
        for name, arguments in calls
    ]
    return f"[TOOL_CALLS][{', '.join(each)}]"


MARKED = MISTRAL_LIST.bound(lambda token: MARK)
TOKEN = MARKED.calls.begin
PARIS = {"city": "Paris", "unit": "c"}
