"""What callers may ask of the form of an output, over HTTP: accepted, refused, and handed on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from tests.edge.output.pets import PET
from tests.edge.scripted_region import answer
from tests.edge.support import Deployment

from skerry.errors import InvalidInput
from skerry_regions.wire.protocol import MAX_GRAMMAR, GrammarSpec

SPEC = GrammarSpec(kind="json_schema", source=json.dumps(PET))

# --- requests ------------------------------------------------------------------------------------

FORMS: list[tuple[dict[str, Any], GrammarSpec | None]] = [
    ({"response_format": {"type": "json_schema", "json_schema": PET}}, SPEC),
    ({"response_format": {"type": "json_schema",
                          "json_schema": {"name": "pet", "strict": True, "schema": PET}}},
     replace(SPEC, strict=True)),
    ({"response_format": {"type": "json_schema",
                          "json_schema": {"name": "pet", "strict": False, "schema": PET}}}, SPEC),
    ({"response_format": {"type": "json_object", "schema": PET}}, SPEC),
    ({"response_format": {"type": "json_object"}},
     GrammarSpec(kind="json_schema", source='{"type": "object"}')),
    ({"guided_json": PET}, SPEC),
    ({"guided_json": json.dumps(PET)}, SPEC),
    ({"guided_regex": "a+"}, GrammarSpec(kind="regex", source="a+")),
    ({"guided_choice": ["yes", "n\u00f6", "yes"]},
     GrammarSpec(kind="ebnf", source='start: "yes" | "n\\u00f6"')),
    ({"guided_grammar": 'start: "a"'}, GrammarSpec(kind="ebnf", source='start: "a"')),
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": None, "guided_choice": None}, None),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "grammar"), FORMS)
def test_every_form_reaches_the_region(
    edge: Deployment, fields: dict[str, Any], grammar: GrammarSpec | None
) -> None:
    edge.region.script = lambda submit: answer('{"name": "Rex", "legs": 4}')
    assert edge.run(prompt="hi", **fields).status_code == 200
    assert edge.chat(**fields).status_code == 200
    assert [submit.grammar for submit in edge.region.submits] == [grammar, grammar]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object", "json_schema": PET}},
         "response_format.json_schema"),
        ({"response_format": {"type": "text", "schema": PET}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": PET, "schema": PET}},
         "response_format.schema"),
        ({"response_format": {"type": "json_schema",
                              "json_schema": {"schema": PET, "strict": "yes"}}},
         "response_format.json_schema.strict"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
         "response_format.json_schema.schema.not"),
        ({"response_format": {"type": "json_schema",
                              "json_schema": {"properties": {"a": {"foo": 1}}}}},
         "response_format.json_schema.properties.a.foo"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_regex": "a" * (MAX_GRAMMAR + 1)}, "guided_regex"),
        ({"guided_grammar": 'start: %json {"not": {}}'}, "guided_grammar"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(edge: Deployment, fields: dict[str, Any], param: str) -> None:
    for reply in (edge.run(prompt="hi", **fields), edge.chat(**fields)):
        assert reply.status_code == 400
        assert param in reply.text
    assert edge.chat(**fields).json()["error"]["param"] == param
    assert not edge.region.submits


def test_native_json_is_the_value_itself(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer('{"name": "Rex", "legs": 1e400}')
    reply = edge.run(prompt="hi", response_format={"type": "json_schema", "json_schema": PET})
    assert '"response":{"name": "Rex", "legs": 1e400}' in reply.text


def test_openai_json_is_text(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer('{"name": "Rex", "legs": 4}')
    reply = edge.chat(response_format={"type": "json_schema", "json_schema": {"schema": PET}})
    assert reply.json()["choices"][0]["message"]["content"] == '{"name": "Rex", "legs": 4}'


def test_a_choice_is_text_natively_too(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer("7")
    assert edge.run(prompt="hi", guided_choice=["7"]).json()["result"]["response"] == "7"


def test_json_that_is_cut_off_is_an_error_natively(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer('{"name": "Re', reason="length")
    reply = edge.run(prompt="hi", response_format={"type": "json_object"})
    assert reply.status_code == 400
    assert reply.json()["errors"][0]["code"] == 5024
    reply = edge.chat(response_format={"type": "json_object"})
    assert reply.json()["choices"][0]["finish_reason"] == "length"


def test_what_the_node_says_of_a_grammar_is_told(edge: Deployment) -> None:
    def refuse(submit: object) -> Any:
        raise InvalidInput("Bad input: the grammar takes too much time or memory to compile")

    edge.region.script = refuse
    reply = edge.chat(guided_regex="(", stream=True)
    assert reply.status_code == 400
    assert "too much time" in reply.json()["error"]["message"]
