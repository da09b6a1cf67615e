"""What callers may ask of the form of an output: accepted, refused by path, and handed on."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from tests.core.schemas import Schema, schemas
from tests.edge.support import Deployment, answer
from tests.properties import examples

from skerry.errors import InvalidInput
from skerry_edge.output.schema import checked
from skerry_edge.output.unenforced import Unenforced
from skerry_regions.wire.protocol import MAX_GRAMMAR, GrammarSpec

PET = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "legs": {"type": "integer"}},
    "required": ["name", "legs"],
    "additionalProperties": False,
}
SPEC = GrammarSpec(kind="json_schema", source=json.dumps(PET))
TAGGED = {
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    "discriminator": {"propertyName": "kind"},
    "$defs": {
        kind: {
            "type": "object",
            "properties": {"kind": {"const": kind}, "age": {"type": "integer"}},
            "required": ["kind"],
        }
        for kind in ("Cat", "Dog")
    },
}


# --- schemas -------------------------------------------------------------------------------------


@settings(max_examples=examples(100), deadline=None)
@given(schemas())
def test_a_supported_schema_stays_as_it_is(schema: Schema) -> None:
    assert checked(schema, "s") == schema


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        (True, {}),
        (PET | {"title": "Pet", "$schema": "https://json-schema.org/draft/2020-12/schema"}, PET),
        ({"type": "array", "uniqueItems": False}, {"type": "array"}),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]},
         {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"oneOf": [{"const": 1}, {"enum": ["1", True]}]},
         {"anyOf": [{"const": 1}, {"enum": ["1", True]}]}),
        ({"items": {"default": {"not": 1}}}, {"items": {}}),
        (PET | {"x-guidance": {"lenient": True}, "x-order": 1, "xml": {}}, PET),
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": ["null", "string"], "nullable": True}, {"type": ["null", "string"]}),
        ({"type": "string", "nullable": False}, {"type": "string"}),
        ({"minimum": 3, "exclusiveMinimum": True}, {"exclusiveMinimum": 3}),
        ({"maximum": 3, "exclusiveMaximum": False}, {"maximum": 3}),
        ({"maximum": (1 << 53) - 1}, {"maximum": (1 << 53) - 1}),
        ({"const": 1 << 60}, {"const": 1 << 60}),
        ({"type": "object", "unevaluatedProperties": False},
         {"type": "object", "additionalProperties": False}),
        ({"additionalProperties": {"type": "null"}, "unevaluatedProperties": False},
         {"additionalProperties": {"type": "null"}}),
    ],
)  # fmt: skip
def test_what_says_nothing_is_left_out(schema: object, left: Schema) -> None:
    assert checked(schema, "s") == left


@pytest.mark.parametrize(
    ("schema", "is_closed"),
    [
        ({"properties": {"a": {}}, "required": ["a"]}, True),
        ({"properties": {"a": {}}, "required": ["b"]}, False),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "null"}}, False),
        ({"properties": {"a": {}}, "anyOf": [{"required": ["b"]}]}, False),
        ({"properties": {"a": {"allOf": [{}]}}}, False),
        ({"type": "object"}, False),
    ],
)
def test_declared_properties_are_all_there_is(schema: Schema, is_closed: bool) -> None:
    assert (checked(schema, "s").get("additionalProperties") is False) is is_closed


def test_a_tagged_union_is_exact() -> None:
    lowered = checked(TAGGED, "s")
    assert "anyOf" in lowered
    for value in ({"kind": "Cat"}, {"kind": "Dog", "age": 3}, {"kind": "Cow"}, {}):
        asked, got = (jsonschema.Draft202012Validator(each) for each in (TAGGED, lowered))
        assert asked.is_valid(value) is got.is_valid(value)


deep: Schema = {}
for _ in range(100):
    deep = {"items": deep}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": {"foo": 1}}}, "s.properties.a.foo"),
        ({"anyOf": [{"type": "null"}, {"not": {}}]}, "s.anyOf[1].not"),
        ({"items": {"uniqueItems": True}}, "s.items.uniqueItems"),
        ({"$defs": {"A": {"if": {}}}}, "s.$defs.A.if"),
        ({"type": "string", "format": "regex"}, "s.format"),
        ({"type": "text"}, "s.type"),
        ({"minimum": "3"}, "s.minimum"),
        ({"minLength": -1}, "s.minLength"),
        ({"type": "string", "pattern": "^(?!a)"}, "s.pattern"),
        ({"patternProperties": {r"\bx": {}}}, r"s.patternProperties.\bx"),
        ({"type": "integer", "maximum": 1 << 53}, "s.maximum"),
        ({"exclusiveMinimum": -1e300}, "s.exclusiveMinimum"),
        ({"const": {"a": [(1 << 53) + 1]}}, "s.const"),
        ({"enum": [-(1 << 60) - 1, 10**400]}, "s.enum"),
        ({"allOf": [{}], "unevaluatedProperties": False}, "s.unevaluatedProperties"),
        ({"required": "a"}, "s.required"),
        ({"enum": []}, "s.enum"),
        ({"$ref": "#/$defs/missing"}, "s.$ref"),
        ({"anyOf": [{"const": {"type": "null"}}, {"$ref": "#/anyOf/0/const"}]}, "s.anyOf[1].$ref"),
        ({"default": {"a": {}}, "items": {"$ref": "#/default/a"}}, "s.items.$ref"),
        ({"$defs": {"a": {}}, "items": {"$ref": "#/$defs"}}, "s.items.$ref"),
        ({"$ref": "http://example.org"}, "s.$ref"),
        ({"properties": []}, "s.properties"),
        ({"anyOf": {}}, "s.anyOf"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "s.oneOf[1]"),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, "s.oneOf[1]"),
        ({"oneOf": [{"type": "null"}], "anyOf": [{}]}, "s.oneOf"),
        (3, "s"),
    ],
)
def test_what_would_not_be_enforced_is_refused_by_its_path(schema: object, path: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked(schema, "s")
    assert caught.value.param == path


LEFT_OUT: list[tuple[Schema, Schema, list[str]]] = [
    ({"uniqueItems": True, "type": "array"}, {"type": "array"}, ["uniqueItems"]),
    ({"type": "string", "format": "regex"}, {"type": "string"}, ["format"]),
    ({"type": "string", "pattern": "(?=a)", "maxLength": 3}, {"type": "string", "maxLength": 3},
     ["pattern"]),
    ({"patternProperties": {"(?=a)": {}, "^b": {}}}, {"patternProperties": {"^b": {}}},
     ["patternProperties.(?=a)"]),
    ({"not": {}, "if": {}, "then": {}, "contains": {}, "unevaluatedItems": False}, {},
     ["not", "if", "then", "contains", "unevaluatedItems"]),
    ({"properties": {"a": {"maximum": 1 << 60, "minimum": 0}}},
     {"properties": {"a": {"minimum": 0}}, "additionalProperties": False},
     ["properties.a.maximum"]),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]},
     {"anyOf": [{"type": "integer"}, {"type": "number"}]}, ["oneOf"]),
    ({"oneOf": [{}], "anyOf": [{"type": "null"}]}, {"anyOf": [{"type": "null"}]}, ["oneOf"]),
    ({"allOf": [{"type": "object"}], "unevaluatedProperties": False},
     {"allOf": [{"type": "object"}]}, ["unevaluatedProperties"]),
    ({"$ref": "https://example.org/a.json"}, {}, ["$ref"]),
    ({"enum": [1, (1 << 53) + 1], "type": "integer"}, {"type": "integer"}, ["enum"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "left", "named"), LEFT_OUT)
def test_what_cannot_be_enforced_is_left_out_where_it_may_be(
    schema: Schema, left: Schema, named: list[str]
) -> None:
    unenforced = Unenforced()
    assert checked(schema, "s", unenforced) == left
    assert unenforced.paths == [f"s.{path}" for path in named]
    with pytest.raises(InvalidInput) as refused:
        checked(schema, "s")
    assert (refused.value.param or "").startswith(f"s.{named[0]}")


def test_a_pattern_that_is_not_known_is_left_to_the_node_where_it_must_be_held() -> None:
    schema, unenforced = {"type": "string", "pattern": r"[\w-.]"}, Unenforced()
    assert checked(schema, "s") == schema
    assert checked(schema, "s", unenforced) == {"type": "string"}
    assert unenforced.paths == ["s.pattern"]


def test_what_is_no_schema_is_refused_all_the_same() -> None:
    for schema in ({"type": "text"}, {"minimum": "3"}, {"format": 3}, {"$ref": "#/missing"}):
        with pytest.raises(InvalidInput):
            checked(schema, "s", Unenforced())


def test_as_much_is_named_as_a_header_holds() -> None:
    unenforced = Unenforced()
    properties = {f"p{number:03}": {"not": {}} for number in range(100)}
    checked({"properties": properties}, "s", unenforced)
    assert len(unenforced.named()) == 33
    assert unenforced.named()[-1] == "...68"


def test_references_lead_to_what_became_of_one_of() -> None:
    """By the keyword, and not by a property of its name."""
    schema = {
        "properties": {
            "oneOf": {"oneOf": [{"type": "null"}, {"type": "string"}]},
            "a": {"$ref": "#/properties/oneOf/oneOf/1"},
        }
    }
    lowered = checked(schema, "s")
    assert lowered["properties"] == {
        "oneOf": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        "a": {"$ref": "#/properties/oneOf/anyOf/1"},
    }


def test_depth_and_number_are_bounded() -> None:
    for schema in (deep, {"anyOf": [{}] * 20_000}):
        with pytest.raises(InvalidInput, match="more than"):
            checked(schema, "s")


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
