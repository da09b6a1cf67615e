"""Schemas of an output: what can be enforced, what is left out, and what is refused by its path."""

from __future__ import annotations

import jsonschema
import pytest
from hypothesis import given, settings
from tests.core.schemas import Schema, schemas
from tests.edge.output.pets import PET
from tests.properties import examples

from skerry.errors import InvalidInput
from skerry_edge.output.schema import checked
from skerry_edge.output.unenforced import Unenforced

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
