"""Schemas of tools: what a grammar holds, what it cannot, and how that is said."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.schemas import Schema
from tests.edge.output.two_tools import FLAT, NESTED, accepts, call, plan
from tests.edge.scripted_region import MODEL, answer
from tests.edge.support import Deployment

from skerry.errors import InvalidInput


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
