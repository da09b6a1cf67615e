"""Outputs that are whole within `max_tokens`, with the default model's own tokenizer.

Its tokens span what a schema forces and what it does not: no space is forced after a key, because
` "` is a token too.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import Tokenizer

from skerry_core.grammar.matcher import CompiledGrammar, GrammarCompiler, lower
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

END = 2  # of the tokenizer
STRING: dict[str, Any] = {"type": "string"}


def required(count: int, value: dict[str, Any]) -> dict[str, Any]:
    names = [f"property_{index}" for index in range(count)]
    return {
        "type": "object",
        "properties": dict.fromkeys(names, value),
        "required": names,
        "additionalProperties": False,
    }


POINT = required(2, {"type": "number"})
TREE: dict[str, Any] = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                "next": {"$ref": "#/$defs/tree"},
            },
            "required": ["value", "kids"],
            "additionalProperties": False,
        }
    },
}


def each(count: int, value: Any) -> dict[str, Any]:
    return {f"property_{index}": value for index in range(count)}


SCHEMAS: dict[str, tuple[dict[str, Any], Any]] = {
    "1 string": (required(1, STRING), each(1, "")),
    "4 strings": (required(4, STRING), each(4, "")),
    "8 strings": (required(8, STRING), each(8, "")),
    "40 strings": (required(40, STRING), each(40, "")),
    "4 integers": (required(4, {"type": "integer"}), each(4, 0)),
    "20 integers": (required(20, {"type": "integer"}), each(20, 0)),
    "enums": (required(4, {"enum": ["red", "green"]}), each(4, "red")),
    "arrays": (required(4, {"type": "array", "items": STRING, "minItems": 1}), each(4, [""])),
    "objects": (required(3, POINT), each(3, each(2, 0))),
    "patterns": (
        required(3, {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}), each(3, "AA-0000"),
    ),
    "dates": (required(2, STRING | {"format": "date"}), each(2, "0000-01-01")),
    "long strings": (required(3, STRING | {"minLength": 20}), each(3, "}" * 20)),
    "bounds": (required(3, {"type": "integer", "minimum": 1000, "maximum": 1010}), each(3, 1000)),
    "a tree": (TREE, {"value": 0, "kids": []}),
    "what is optional": (required(3, STRING) | {"required": []}, {}),
    "no schema": ({"type": "object"}, {}),
}  # fmt: skip
"""By name, a schema and a shortest value of it."""


@pytest.fixture(scope="module")
def compiler(default_model: ModelFiles) -> GrammarCompiler:
    return GrammarCompiler(default_model.tokenizer, vocab_size=49_152, stop_token_ids=[END])


@pytest.fixture(scope="module")
def tokenizer(default_model: ModelFiles) -> Tokenizer:
    return Tokenizer.from_file(str(default_model.tokenizer))


def drawn(grammar: CompiledGrammar, budget: int, rng: Random) -> list[int]:
    """A model that takes any token that is allowed, and seldom one that ends something."""
    matcher, ids = grammar.matcher(), list[int]()
    while not matcher.is_finished and len(ids) < budget:
        matcher.fill()
        assert matcher.mask is not None
        allowed = np.flatnonzero(np.unpackbits(matcher.mask.view(np.uint8), bitorder="little"))
        choices = allowed[allowed != END] if len(allowed) > 1 else allowed
        ids.append(matcher.choose(int(choices[rng.randrange(len(choices))]), budget - len(ids) - 1))
    return ids


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_output_is_whole_where_the_shortest_fits(
    compiler: GrammarCompiler, tokenizer: Tokenizer, name: str
) -> None:
    """As many tokens as the tokenizer itself writes the shortest value in are enough."""
    schema, value = SCHEMAS[name]
    shortest = len(tokenizer.encode(json.dumps(value), add_special_tokens=False).ids)
    grammar = compiler.compile(lower("json_schema", json.dumps(schema)))
    for more in (0,) if shortest > 200 else (0, 1, 30):
        ids = drawn(grammar, shortest + more, Random(more))
        text = compiler.tokenizer.decode_bytes([each for each in ids if each != END])
        jsonschema.validate(json.loads(text), schema)
        assert len(ids) <= shortest + more


def test_a_limit_below_the_shortest_changes_nothing(compiler: GrammarCompiler) -> None:
    """There is no way then: what the model says is cut, as without a grammar."""
    grammar = compiler.compile(lower("json_schema", json.dumps(required(4, STRING))))
    ids = drawn(grammar, 20, Random(7))
    assert len(ids) == 20
    with pytest.raises(json.JSONDecodeError):
        json.loads(compiler.tokenizer.decode_bytes(ids))
