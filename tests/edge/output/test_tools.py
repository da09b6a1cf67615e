"""Tools: every form of asking, the grammar that holds a model to them, calls in every form."""

from __future__ import annotations

import asyncio
import json
import re
from random import Random
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.byte_grammars import END, MARK, compiled, text
from tests.core.schemas import Schema
from tests.edge.support import MODEL, Deployment, answer, events
from tests.properties import examples

from skerry.errors import InvalidInput, PromptTooLong
from skerry.wire import Message
from skerry.wire.openai import ChatCompletionRequest
from skerry_core.grammar.matcher import GrammarError
from skerry_edge.families.deltas import CallDelta, Calls, TextDelta
from skerry_edge.families.family import Family, ReaderSpec
from skerry_edge.families.reader import Reader
from skerry_edge.families.recognition import family_of
from skerry_edge.families.table import HERMES, LLAMA, MISTRAL_LIST, TAUGHT
from skerry_edge.output.asked import OutputAsked
from skerry_edge.output.plan import OutputPlan, plan_fields
from skerry_edge.output.tool_prompts import EXAMPLE, with_tools
from skerry_edge.text.prompts import chat_prompt

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
        return grammar.matcher(token_ids(output)).is_accepting
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

# --- forms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": NESTED},
        {"tools": FLAT},
        {"tools": [{"type": "function", **each} for each in FLAT]},
        {"functions": FLAT},
        {"tools": NESTED, "tool_choice": "auto"},
    ],
)
def test_forms_of_tools(fields: dict[str, Any]) -> None:
    box = plan(**fields).box
    assert box is not None
    assert [tool.name for tool in box.tools] == ["weather", "add"]
    assert box.choice == "auto"
    assert box.is_parallel


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "function", "function": {"name": "add"}}},
        {"tool_choice": {"type": "function", "name": "add"}},
        {"function_call": {"name": "add"}},
    ],
)
def test_forms_of_naming_a_tool(fields: dict[str, Any]) -> None:
    box = plan(tools=NESTED, **fields).box
    assert box is not None
    assert [tool.name for tool in box.tools] == ["add"]
    assert (box.choice, box.is_parallel) == ("required", False)


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("is_nested", [True, False])
def test_some_tools_are_allowed_and_all_are_shown(mode: str, is_nested: bool) -> None:
    """So that the prompt's beginning stays the same, and is found in the cache."""
    named = [{"type": "function", "function": {"name": "add"}}]
    allowed: dict[str, Any] = {"mode": mode, "tools": named}
    if not is_nested:
        allowed["tools"] = [{"type": "function", "name": "add"}]
    inside = {"allowed_tools": allowed} if is_nested else allowed
    whole = plan(tools=NESTED, tool_choice={"type": "allowed_tools", **inside})
    box = whole.box
    assert box is not None
    assert [tool.name for tool in box.tools] == ["add"]
    assert [tool.name for tool in box.shown] == ["weather", "add"]
    assert (box.choice, box.is_parallel) == (mode, True)
    assert whole.grammar is not None
    assert "weather" not in whole.grammar.source


@pytest.mark.parametrize(
    "allowed",
    [
        {},
        {"mode": "none", "tools": [{"type": "function", "name": "add"}]},
        {"mode": "auto", "tools": []},
        {"mode": "auto", "tools": [{"type": "mcp", "server_label": "x"}]},
        {"mode": "auto", "tools": [{"type": "function", "name": "divide"}]},
        {"allowed_tools": [{"type": "function", "name": "add"}]},
    ],
)
def test_tools_that_cannot_be_allowed(allowed: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        plan(tools=NESTED, tool_choice={"type": "allowed_tools", **allowed})
    assert refused.value.param == "tool_choice"


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": None, "tool_choice": "none"}, {}])
def test_no_tools(fields: dict[str, Any]) -> None:
    assert plan(**fields).box is None
    assert plan(**fields).grammar is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"name": "a\n"}]}, "tools[0].name"),
        ({"tools": [{"type": "custom", "name": "a"}]}, "tools[0].type"),
        ({"tools": [{"function": []}]}, "tools[0].function"),
        ({"tools": [FLAT[0], FLAT[0]]}, "tools[1]"),
        ({"tools": [{"name": "a"}] * 129}, "tools"),
        ({"tools": [{"name": "a", "description": 3}]}, "tools[0].description"),
        (
            {"tools": [{"name": "a", "strict": True, "parameters": {"not": {}}}]},
            "tools[0].parameters.not",
        ),
        ({"tools": [{"name": "a", "parameters": {"type": "array"}}]}, "tools[0].parameters.type"),
        ({"tools": [{"name": "a", "strict": "yes"}]}, "tools[0].strict"),
        ({"tools": [{"name": "a", "parameters": []}]}, "tools[0].parameters"),
        ({"tools": [{"name": "a", "input_schema": ""}]}, "tools[0].input_schema"),
        ({"tools": FLAT, "functions": FLAT}, "functions"),
        ({"tools": FLAT, "tool_choice": "auto", "function_call": "none"}, "function_call"),
        ({"tools": FLAT, "tool_choice": "any"}, "tool_choice"),
        ({"tools": FLAT, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"tools": FLAT, "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": FLAT, "guided_regex": "a"}, "tools"),
        ({"tools": [{"name": "a", "parameters": {"enum": ["x" * 140_000]}}]}, "tools"),
    ],
)
def test_what_cannot_be_held_is_refused_by_its_path(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        plan(**fields)
    assert caught.value.param == param


# As generators of clients write them: zod, pydantic, OpenAPI 3.0, schemars, a server of MCP.
ORDINARY: dict[str, tuple[Schema, list[Any], list[str]]] = {
    "zod": (
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
         "properties": {
             "ids": {"type": "array", "items": {"type": "integer", "maximum": 9007199254740991,
                                                "minimum": -9007199254740991}, "uniqueItems": True},
             "email": {"type": "string", "format": "email",
                       "pattern": r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[\w+-]@([A-Z]+)$"},
             "url": {"type": "string", "format": "uri-reference"}},
         "required": ["ids"], "additionalProperties": False},
        [{"ids": [3, 3]}, {"ids": [], "email": "a@b.example", "url": "x"}],
        ["ids.uniqueItems", "email.pattern", "url.format"],
    ),
    "OpenAPI 3.0": (
        {"type": "object",
         "properties": {
             "name": {"type": "string", "nullable": True, "example": "x"},
             "size": {"type": "integer", "format": "int64", "minimum": 0, "exclusiveMinimum": True},
             "kind": {"oneOf": [{"type": "string"}, {"type": "string", "format": "uuid"}]},
             "password": {"type": "string", "format": "password", "writeOnly": True}},
         "required": ["name", "size"], "xml": {"name": "thing"}},
        [{"name": None, "size": 1}, {"name": "a", "size": 2, "kind": "b", "password": "c"}],
        ["size.format", "kind.oneOf", "password.format"],
    ),
    "schemars": (
        {"type": "object", "title": "Args",
         "properties": {"offset": {"type": "integer", "format": "uint64", "minimum": 0,
                                   "maximum": 18446744073709551615},
                        "mode": {"anyOf": [{"const": "a"}, {"type": "null"}], "default": None}},
         "required": ["offset"], "unevaluatedProperties": False},
        [{"offset": 7}, {"offset": 0, "mode": None}],
        ["offset.format", "offset.maximum"],
    ),
    "MCP": (
        {"type": "object",
         "properties": {"path": {"type": "string", "not": {"pattern": r"\.\."}},
                        "edits": {"type": "array", "minItems": 1, "contains": {"type": "object"},
                                  "items": {"type": "object", "dependentRequired": {"a": ["b"]},
                                            "properties": {"a": {"type": "string"},
                                                           "b": {"type": "string"}}}},
                        "env": {"type": "object", "propertyNames": {"pattern": "^[A-Z]+$"},
                                "additionalProperties": {"type": "string"}}},
         "required": ["path"], "x-order": ["path"],
         "if": {"required": ["env"]}, "then": {"required": ["edits"]}},
        [{"path": "/"}, {"path": "..", "edits": [{"b": "x"}], "env": {"a": "b"}}],
        ["path.not", "edits.contains", "edits.items.dependentRequired", "env.propertyNames"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_tools_are_called_by_what_can_be_held(name: str) -> None:
    schema, calls, named = ORDINARY[name]
    whole = plan(tools=[{"name": "f", "parameters": schema}], tool_choice="required")
    assert whole.box is not None
    assert whole.box.tools[0].declared == schema  # the model reads all of it
    for arguments in calls:
        assert accepts(whole, call("f", arguments))
    assert not accepts(whole, call("f", {}))
    found = [path.removeprefix("tools[0].parameters.properties.") for path in whole.unenforced]
    assert [path for path in found if not path.startswith("tools")] == named
    with pytest.raises(InvalidInput) as refused:
        plan(tools=[{"name": "f", "parameters": schema, "strict": True}])
    assert refused.value.param == whole.unenforced[0] or name == "OpenAPI 3.0"


def test_what_is_not_held_is_named_in_every_dialect(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer("Hello")
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    nested = {"type": "function", "function": {"name": "f", "parameters": schema}}
    flat = {"type": "function", "name": "f", "parameters": schema}
    base, hi = edge.chat_path.removesuffix("/chat/completions"), [{"role": "user", "content": "x"}]
    asked: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
        "native": (edge.run_path, {"prompt": "x"}, flat, "tools[0].parameters"),
        "nested": (edge.run_path, {"prompt": "x"}, nested, "tools[0].function.parameters"),
        "chat": (edge.chat_path, {"model": MODEL, "messages": hi}, nested,
                 "tools[0].function.parameters"),
        "responses": (f"{base}/responses", {"model": MODEL, "input": "x"}, flat,
                      "tools[0].parameters"),
        "messages": (f"{base}/messages", {"model": MODEL, "messages": hi, "max_tokens": 9},
                     {"name": "f", "input_schema": schema}, "tools[0].input_schema"),
    }  # fmt: skip
    for path, body, tool, where in asked.values():
        for stream in (False, True):
            reply = edge.client.post(path, json=body | {"tools": [tool], "stream": stream})
            assert reply.status_code == 200, reply.text
            named = reply.headers["x-skerry-unenforced"]
            assert named == f"{where}.properties.a.uniqueItems"
        strict = tool | {"strict": True}
        if "function" in tool:
            strict = tool | {"function": tool["function"] | {"strict": True}}
        reply = edge.client.post(path, json=body | {"tools": [strict]})
        assert reply.status_code == 400
        assert f"{where}.properties.a.uniqueItems: this keyword" in reply.text
    for body in ({"tools": [flat]}, {"tools": [flat], "padding": "x" * 40_000}):
        refused = edge.run(prompt="x", options={"strict": True}, **body)
        assert refused.status_code == 400
    assert "x-skerry-unenforced" not in edge.chat(tools=[NESTED[0]]).headers


def test_what_a_large_schema_says_is_named_by_the_child_too(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer("{}")
    many = {f"p{number}": {"type": "string"} for number in range(1000)}
    schema = {"type": "object", "properties": {"a": {"not": {}}} | many}
    inside = {"name": "x", "schema": schema, "strict": False}
    form = {"type": "json_schema", "json_schema": inside}
    where = "response_format.json_schema.schema.properties.a.not"
    assert edge.chat(response_format=form).headers["x-skerry-unenforced"] == where
    refused = edge.chat(response_format=form, options={"strict": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, where)


def test_a_format_says_itself_whether_it_must_be_held(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer("[]")
    schema = {"type": "array", "uniqueItems": True}
    for strict in (None, True, False):
        inside = {"name": "x", "schema": schema, "strict": strict}
        reply = edge.chat(response_format={"type": "json_schema", "json_schema": inside})
        where = "response_format.json_schema.schema.uniqueItems"
        if strict is False:
            assert reply.headers["x-skerry-unenforced"] == where
        else:
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, where)


def test_families_are_known_by_their_templates() -> None:
    for family in (TAUGHT, HERMES, LLAMA):
        assert family_of(Template(family).chat_template).name == family.name
    mistral = Template(MISTRAL_LIST)
    assert family_of(mistral.chat_template, mistral.control_id).calls == MARKED.calls
    unmarked = family_of(mistral.chat_template)
    assert unmarked.name == TAUGHT.name  # the vocabulary has no such token


# --- what the grammar holds ----------------------------------------------------------------------


@pytest.mark.parametrize("family", [TAUGHT, HERMES, LLAMA], ids=lambda family: family.name)
def test_required_is_calls_and_nothing_else(family: Family) -> None:
    required = plan(family, tools=NESTED, tool_choice="required")
    one, other = call("weather", PARIS, family), call("add", {"a": 1, "b": [2]}, family)
    assert accepts(required, one)
    assert accepts(required, other)
    assert accepts(required, f"{one}\n{other}") is (family is not LLAMA)
    for wrong in ("", "Hello.", call("sub", {}, family), call("add", {"a": "1"}, family)):
        assert not accepts(required, wrong)
    assert not accepts(required, call("weather", PARIS | {"more": 1}, family))


def test_one_call_at_most() -> None:
    one = call("add", {"a": 1})
    single = plan(tools=NESTED, tool_choice="required", parallel_tool_calls=False)
    assert accepts(single, one)
    assert not accepts(single, f"{one}\n{one}")
    named = plan(tools=NESTED, tool_choice={"type": "function", "function": {"name": "add"}})
    assert accepts(named, one)
    assert not accepts(named, f"{one}\n{one}")
    assert not accepts(named, call("weather", PARIS))


@pytest.mark.parametrize("family", [TAUGHT, LLAMA], ids=lambda family: family.name)
def test_auto_is_text_or_calls_that_are_right(family: Family) -> None:
    auto = plan(family, tools=NESTED)
    assert accepts(auto, "")
    assert accepts(auto, "Hello <b>you</b>.")
    assert accepts(auto, call("weather", PARIS, family))
    assert not accepts(auto, call("sub", {}, family))
    if family is TAUGHT:
        assert accepts(
            auto, "Let me look.\n" + call("weather", PARIS) + "\n" + call("add", {"a": 1})
        )
        assert not accepts(auto, "Look: <tool_call>oops")


def test_none_is_text_without_calls() -> None:
    none = plan(tools=NESTED, tool_choice="none")
    assert none.called is None
    assert accepts(none, "Use <tool> and <tool_call.")
    assert not accepts(none, call("add", {"a": 1}))


def test_tools_beside_json() -> None:
    schema = {"type": "object", "properties": {"done": {"type": "boolean"}}, "required": ["done"]}
    both = plan(tools=NESTED, response_format={"type": "json_schema", "json_schema": schema})
    assert accepts(both, '{"done": true}')
    assert accepts(both, call("add", {"a": 1}))
    assert not accepts(both, "Done.")


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([TAUGHT, LLAMA]))
def test_whatever_is_generated_is_read_back_as_valid_calls(seed: int, family: Family) -> None:
    required = plan(family, tools=NESTED, tool_choice="required", parallel_tool_calls=False)
    assert required.grammar is not None
    matcher = compiled("ebnf", required.grammar.source).matcher()
    rng, ids = Random(seed), list[int]()
    while not matcher.is_finished and len(ids) < 600:
        matcher.fill()
        assert matcher.mask is not None
        choices = [i for i in range(257) if matcher.mask[i >> 5] >> (i & 31) & 1]
        closing = [i for i in choices if i in b'"}]']  # keep it short
        ids.append(rng.choice(closing if closing and rng.random() < 0.3 else choices))
        matcher.advance(ids[-1])
    if not matcher.is_finished:
        return
    said, calls = parsed(family, text(i for i in ids if i != END))
    assert said == ""
    [made] = calls.all
    jsonschema.validate(json.loads(made.arguments), SCHEMAS[made.name])


def test_mistral_calls_stand_in_a_list() -> None:
    one, both = listed(("weather", PARIS)), listed(("weather", PARIS), ("add", {"a": 1}))
    required = plan(MISTRAL_LIST, tools=NESTED, tool_choice="required")
    assert required.family.calls == MARKED.calls
    for right in (one, both, one.replace("S][", "S] [")):
        assert accepts(required, right)
    for wrong in ("", "Hello.", one[:-1], "Hm. " + one, listed(("sub", {})), one + one):
        assert not accepts(required, wrong)
    auto = plan(MISTRAL_LIST, tools=NESTED)
    for right in ("", "Hello [b].", one, "Let me look.\n" + both):
        assert accepts(auto, right)
    assert not accepts(auto, listed(("sub", {})))
    assert not accepts(auto, one + " Done.")
    single = plan(MISTRAL_LIST, tools=NESTED, tool_choice="required", parallel_tool_calls=False)
    assert accepts(single, one)
    assert not accepts(single, both)
    none = plan(MISTRAL_LIST, tools=NESTED, tool_choice="none")
    assert accepts(none, "Hello.")
    assert not accepts(none, one)


def test_a_spelled_mark_is_text_where_it_is_a_control_token() -> None:
    auto = plan(MISTRAL_LIST, tools=NESTED)
    assert auto.grammar is not None
    matcher = compiled("ebnf", auto.grammar.source).matcher(b"[TOOL_CALLS] of the text")
    assert matcher.is_accepting
    reader = Reader(ReaderSpec(family=MARKED, tools=SCHEMAS))
    assert reader.push("[TOOL_CALLS][") == [TextDelta("[TOOL_CALLS][")]


# --- what is read --------------------------------------------------------------------------------

OUTPUTS: list[tuple[Family, str, str, list[tuple[str, object]]]] = [
    (TAUGHT, "Hello <b>\n", "Hello <b>\n", []),
    (TAUGHT, "  \n", "  \n", []),
    (TAUGHT, "Half a <tool_", "Half a ", []),
    (TAUGHT, call("add", {"a": 1}), "", [("add", {"a": 1})]),
    (TAUGHT, "\n" + call("add", {}) + "\n" + call("add", {"b": [1, [2]]}) + "\n", "",
     [("add", {}), ("add", {"b": [1, [2]]})]),
    (TAUGHT, "Let me.\n" + call("w", {"c": '}"\\\n</tool_call>'}) + "\nDone.", "Let me.\nDone.",
     [("w", {"c": '}"\\\n</tool_call>'})]),
    (HERMES, call('quo"te', {"é": "ü"}), "", [('quo"te', {"é": "ü"})]),
    (LLAMA, '{"name": "add", "parameters": {"a": 1}}', "", [("add", {"a": 1})]),
    (MARKED, listed(("add", {"a": 1})), "", [("add", {"a": 1})]),
    (MARKED, "Let me.\n" + listed(("a", {"b": "}]"}), ("c", {}), ("d", {})), "Let me.",
     [("a", {"b": "}]"}), ("c", {}), ("d", {})]),
    (MARKED, listed(("a", {})).replace("][", "] ["), "", [("a", {})]),
    (MARKED, "Half a [TOOL_", "Half a [TOOL_", []),
    (LLAMA, 'No: {"name": "add", "parameters": {"a": 1}}',
     'No: {"name": "add", "parameters": {"a": 1}}', []),
]  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(OUTPUTS), st.lists(st.integers(1, 30)))
def test_text_and_calls_in_any_pieces(
    case: tuple[Family, str, str, list[tuple[str, object]]], sizes: list[int]
) -> None:
    family, output, said, wanted = case
    got, calls = parsed(family, output, sizes)
    assert got == said
    assert [(each.name, json.loads(each.arguments)) for each in calls.all] == wanted
    assert len({each.id for each in calls.all}) == len(wanted)


@pytest.mark.parametrize("end", range(1, 60))
def test_a_call_that_is_cut_leaks_no_markup(end: int) -> None:
    output = call("add", {"a": 1})[:end]
    said, calls = parsed(TAUGHT, output)
    assert "tool_call>" not in said
    assert all(each.name == "add" for each in calls.all)


def test_arguments_are_told_as_they_come() -> None:
    reader = Reader(ReaderSpec(family=TAUGHT, tools=SCHEMAS))
    deltas = [delta for letter in call("add", {"a": 1}) for delta in reader.push(letter)]
    assert all(isinstance(delta, CallDelta) for delta in deltas)
    begun, *parts, end = [delta for delta in deltas if isinstance(delta, CallDelta)]
    assert (begun.name, begun.arguments, begun.ends) == ("add", "", False)
    assert [delta.arguments for delta in parts] == list('{"a": 1}')
    assert all(delta.id is None and not delta.ends for delta in parts)
    assert (end.arguments, end.ends) == ("", True)


# --- conversations -------------------------------------------------------------------------------


def test_the_arguments_of_calls_count_as_text(edge: Deployment) -> None:
    spec, text = edge.edge.served(MODEL)
    said = Message("assistant", None, tool_calls=[{"name": "f", "arguments": "x" * 1_000_000}])
    with pytest.raises(PromptTooLong, match="The prompt has 1000"):
        asyncio.run(chat_prompt(text, spec, [said], edge.edge.limits, edge.edge.desk, "t"))


HISTORY = [
    Message("user", "2+3, and the weather?"),
    Message("assistant", None, tool_calls=[
        {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}},
        {"name": "weather", "arguments": {"city": "Paris"}},
    ]),
    Message("tool", "5", tool_call_id="1"),
    Message("tool", "sunny", name="weather"),
    Message("user", "Thanks."),
]  # fmt: skip


def test_a_model_is_taught_in_its_system_message() -> None:
    box = plan(tools=NESTED).box
    for messages in (HISTORY, [Message("system", "Be kind."), *HISTORY]):
        turns, tools = with_tools(TAUGHT, messages, box)
        assert tools is None
        assert isinstance(turns[0].content, str)
        assert tuple(turns[1:3]) == EXAMPLE
        del turns[1:3]
        assert [turn.role for turn in turns] == ["system", "user", "assistant", "user", "user"]
        assert '{"type": "function", "function": {"name": "weather"' in turns[0].content
        assert turns[2].content == (
            '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>\n'
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
        )
        assert turns[3].content == (
            "<tool_response>\n5\n</tool_response>\n<tool_response>\nsunny\n</tool_response>"
        )


def test_a_model_with_a_template_of_its_own_gets_all_as_it_is() -> None:
    whole = plan(HERMES, tools=FLAT)
    turns, tools = with_tools(whole.family, HISTORY, whole.box)
    assert turns == HISTORY
    assert tools is not None
    assert [tool["function"]["name"] for tool in tools] == ["weather", "add"]


def test_tools_that_may_not_be_called_are_not_shown() -> None:
    turns, _ = with_tools(TAUGHT, HISTORY[:1], plan(tools=NESTED, tool_choice="none").box)
    assert turns == HISTORY[:1]


def test_mistral_gets_ids_that_its_template_takes() -> None:
    whole = plan(MISTRAL_LIST, tools=NESTED)
    turns, tools = with_tools(whole.family, HISTORY, whole.box)
    assert tools is not None
    calls = turns[1].tool_calls
    assert calls is not None
    ids = [call["id"] for call in calls]
    assert all(re.fullmatch(r"[0-9A-Za-z]{9}", id_) for id_ in ids)
    assert len(set(ids)) == 2
    assert [turn.tool_call_id for turn in turns[2:4]] == ids
    assert calls[1]["function"] == {"name": "weather", "arguments": {"city": "Paris"}}
    kept = Message("tool", "5", tool_call_id="abcDEF123")
    assert with_tools(MARKED, [kept], None)[0] == [kept]
    _, calls_made = parsed(MARKED, listed(("add", {})))
    assert re.fullmatch(r"[0-9A-Za-z]{9}", calls_made.all[0].id)


OLD_HISTORY = [
    Message("user", "2+3?"),
    Message("assistant", None, function_call={"name": "add", "arguments": '{"a": 2}'}),
    Message("function", "5", name="add"),
]


def test_turns_from_before_there_were_tools() -> None:
    turns, _ = with_tools(HERMES, OLD_HISTORY, None)
    assert turns[1].function_call is None
    assert turns[1].tool_calls == [
        {"type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    ]
    assert turns[2] == Message("tool", "5", name="add")
    taught, _ = with_tools(TAUGHT, OLD_HISTORY, None)
    assert taught[1].content == '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
    assert taught[2].content == "<tool_response>\n5\n</tool_response>"


# --- answers -------------------------------------------------------------------------------------

BOTH = "Let me see.\n" + call("weather", PARIS) + "\n" + call("add", {"a": 1})


def test_chat_completions(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(BOTH)
    choice = edge.chat(tools=NESTED).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    functions = [each["function"] for each in choice["message"]["tool_calls"]]
    assert functions == [
        {"name": "weather", "arguments": json.dumps(PARIS)},
        {"name": "add", "arguments": '{"a": 1}'},
    ]
    edge.region.script = lambda submit: answer(call("add", {"a": 1}))
    assert edge.chat(tools=NESTED).json()["choices"][0]["message"]["content"] is None


def test_chat_completions_streamed(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(BOTH, per_step=3)
    body = edge.chat(tools=FLAT, stream=True).text
    chunks = [each["choices"][0] for each in events(body) if each != "[DONE]"]
    assert "tool_call>" not in body
    assert chunks[-1]["finish_reason"] == "tool_calls"
    said = "".join(each["delta"].get("content", "") for each in chunks)
    assert said == "Let me see."
    deltas = [delta for each in chunks for delta in each["delta"].get("tool_calls", [])]
    starts = [delta for delta in deltas if "id" in delta]
    assert [(delta["index"], delta["function"]["name"]) for delta in starts] == [
        (0, "weather"),
        (1, "add"),
    ]
    joined = "".join(d["function"]["arguments"] for d in deltas if d["index"] == 0)
    assert json.loads(joined) == PARIS


def test_functions_are_answered_in_the_form_of_their_time(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(call("add", {"a": 1}), per_step=4)
    choice = edge.chat(functions=FLAT, function_call={"name": "add"}).json()["choices"][0]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "add", "arguments": '{"a": 1}'}
    assert choice["message"]["content"] is None
    assert "tool_calls" not in choice["message"]
    body = edge.chat(functions=FLAT, stream=True).text
    chunks = [each["choices"][0] for each in events(body) if each != "[DONE]"]
    deltas = [each["delta"]["function_call"] for each in chunks if "function_call" in each["delta"]]
    assert deltas[0] == {"name": "add", "arguments": ""}
    assert "".join(delta["arguments"] for delta in deltas) == '{"a": 1}'
    assert all("name" not in delta for delta in deltas[1:])
    assert chunks[-1]["finish_reason"] == "function_call"
    assert "tool_calls" not in body
    edge.region.script = lambda submit: answer("Hello")
    said = edge.chat(functions=FLAT).json()["choices"][0]
    assert (said["message"]["content"], said["finish_reason"]) == ("Hello", "stop")


def test_native(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(BOTH)
    result = edge.run(prompt="hi", tools=FLAT).json()["result"]
    assert result["response"] == "Let me see."
    assert result["tool_calls"] == [
        {"name": "weather", "arguments": PARIS},
        {"name": "add", "arguments": {"a": 1}},
    ]


def test_native_streamed(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(BOTH, per_step=5)
    body = edge.run(prompt="hi", tools=FLAT, stream=True).text
    chunks = [each for each in events(body) if each != "[DONE]"]
    assert "tool_call>" not in body
    assert "".join(each["response"] for each in chunks) == "Let me see."
    calls = [made for each in chunks for made in each.get("tool_calls", [])]
    assert calls == [
        {"name": "weather", "arguments": PARIS},
        {"name": "add", "arguments": {"a": 1}},
    ]


def test_a_call_that_max_tokens_cut(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(call("add", {"a": 1})[:-20], reason="length")
    choice = edge.chat(tools=NESTED, tool_choice="required").json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert edge.run(prompt="hi", tools=NESTED).json()["result"]["tool_calls"] == []


def test_the_model_is_told_of_its_tools(edge: Deployment) -> None:
    edge.run(prompt="hi", tools=NESTED)
    edge.chat(tools=NESTED)
    for submit in edge.region.submits:
        assert bytes(submit.prompt_ids).startswith(b"<tools>weather,add\n")
        assert submit.grammar is not None
