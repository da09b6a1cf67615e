"""Bounds of arguments in notations that are no JSON: held, or named, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.edge.families.test_call_grammars import FAMILIES, accepts, bound, grammar, planned

from skerry.errors import InvalidInput
from skerry_edge.families.value_types import types_of
from skerry_edge.families.writer import written_calls

BOUNDED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "mode": {"enum": ["fast", "slow"]},
        "code": {"type": "string", "minLength": 2, "maxLength": 3},
        "size": {"type": "integer", "minimum": 1, "maximum": 9},
        "list": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2},
        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
    "required": ["mode", "size"],
    "$defs": {"tag": {"type": "object", "properties": {"t": {"const": "x"}}, "required": ["t"]}},
}
WHOLE: dict[str, Any] = {
    "mode": "fast",
    "code": "a}",
    "size": 3,
    "list": [{"t": "x"}],
    "either": None,
}


@pytest.mark.parametrize("name", ["qwen-coder", "glm-4.5", "glm", "gemma"])
@pytest.mark.parametrize("has_tokens", [False, True])
def test_bounds_of_values_that_are_no_json(name: str, has_tokens: bool) -> None:
    family = bound(name, has_tokens)
    tool = {"name": "f", "parameters": BOUNDED, "strict": True}
    automaton = grammar(family, planned(family, tools=[tool], tool_choice="required"))

    def takes(**changed: Any) -> bool:
        arguments = {key: value for key, value in (WHOLE | changed).items() if value != ""}
        output = written_calls(family, [("f", arguments)], tools={"f": BOUNDED})
        return accepts(family, automaton, output)

    assert takes()
    assert takes(code="", either="", list="")  # left out
    assert takes(list=[], either=5, code="é🙂\n")
    for wrong in (
        {"mode": "fas"},
        {"mode": ""},
        {"code": "a"},
        {"code": "abcd"},
        {"size": 10},
        {"size": ""},
        {"list": [{"t": "y"}]},
        {"list": [{"t": "x"}] * 3},
        {"either": True},
    ):
        assert not takes(**wrong), wrong


def test_what_a_notation_cannot_hold_is_named_or_refused() -> None:
    family = FAMILIES["qwen-coder"]
    schema = {
        "type": "object",
        "properties": {
            "when": {"type": "string", "format": "date"},
            "deep": {"type": "object", "properties": {"p": {"type": "string", "pattern": "^a$"}}},
        },
    }
    plan = planned(family, tools=[{"name": "f", "parameters": schema}])
    assert plan.unenforced == ("tools[0].parameters.properties.when.format",)
    with pytest.raises(InvalidInput) as refused:
        planned(family, tools=[{"name": "f", "parameters": schema, "strict": True}])
    assert refused.value.param == "tools[0].parameters.properties.when.format"
    assert planned(FAMILIES["hermes"], tools=[{"name": "f", "parameters": schema}]).unenforced == ()
    nested = planned(FAMILIES["gemma"], tools=[{"name": "f", "parameters": schema}]).unenforced
    assert nested == (
        "tools[0].parameters.properties.when.format",
        "tools[0].parameters.properties.deep.properties.p.pattern",
    )


@pytest.mark.parametrize(
    ("reference", "types"),
    [
        ("#/$defs/a", {"string"}),
        ("#/$defs/a~1b", {"integer"}),
        ("#/$defs/c", None),
        ("#a", None),  # an anchor
        ("other.json#/$defs/a", None),
    ],
)
def test_a_reference_names_a_schema_of_its_document(reference: str, types: set[str] | None) -> None:
    named = {"a": {"type": "string"}, "a/b": {"type": "integer"}}
    root = {"type": "object", "$defs": named, "a": named["a"]}
    assert types_of({"$ref": reference}, root) == types
