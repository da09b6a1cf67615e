"""Outputs that are whole within `max_tokens`, with real vocabularies.

Their tokens span what a schema forces and what it does not: no space is forced after a key, because
` "` is a token too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import jsonschema
import numpy as np
import pytest
from tests.core.grammar.generated_schemas import generated, shortest_text
from tests.vocabularies import Vocabulary, vocabulary
from tokenizers import Tokenizer

from skerry_core.grammar.compiler import GrammarCompiler
from skerry_core.grammar.lowering import lower
from skerry_core.grammar.matcher import CompiledGrammar
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

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


@dataclass(frozen=True)
class Subject:
    """A vocabulary, for grammars and by the library that it was made for."""

    compiler: GrammarCompiler
    tokenizer: Tokenizer
    end: int

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Subject:
        path, size, end = vocabulary.tokenizer, vocabulary.size, vocabulary.end
        compiler = GrammarCompiler(path, vocab_size=size, stop_token_ids=[end])
        return cls(compiler, Tokenizer.from_file(str(path)), end)

    def count(self, value: Any) -> int:
        """How many tokens the tokenizer writes a value in."""
        text = shortest_text(value)
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def text(self, ids: list[int]) -> str:
        return self.compiler.tokenizer.decode_bytes(
            [each for each in ids if each != self.end]
        ).decode()


@pytest.fixture(scope="module")
def smollm2(default_model: ModelFiles) -> Subject:
    return Subject.of(Vocabulary(default_model.tokenizer, 49_152, 2))


@pytest.fixture(scope="module", params=["smollm2", "llama3", "qwen", "mistral"])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "smollm2":
        smollm2: Subject = request.getfixturevalue("smollm2")
        return smollm2
    return Subject.of(vocabulary(request.param))


def drawn(grammar: CompiledGrammar, budget: int, rng: Random, end: int) -> list[int]:
    """A model that takes any token that is allowed, and seldom one that ends something."""
    return [taken for _, taken in chosen(grammar, budget, rng, end)]


def chosen(
    grammar: CompiledGrammar, budget: int, rng: Random, end: int
) -> Iterator[tuple[int, int]]:
    """The tokens that such a model samples, each with the one that is taken."""
    matcher = grammar.matcher()
    for left in range(budget - 1, -1, -1):
        matcher.fill()
        assert matcher.mask is not None
        allowed = np.flatnonzero(np.unpackbits(matcher.mask.view(np.uint8), bitorder="little"))
        choices = allowed[allowed != end] if len(allowed) > 1 else allowed
        sampled = int(choices[rng.randrange(len(choices))])
        yield sampled, matcher.choose(sampled, left)
        if matcher.is_finished:
            break


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_output_is_whole_where_the_shortest_fits(smollm2: Subject, name: str) -> None:
    """As many tokens as the tokenizer itself writes the shortest value in are enough."""
    schema, value = SCHEMAS[name]
    shortest = smollm2.count(value)
    grammar = smollm2.compiler.compile(lower("json_schema", json.dumps(schema)))
    for more in (0,) if shortest > 200 else (0, 1, 30):
        ids = drawn(grammar, shortest + more, Random(more), smollm2.end)
        jsonschema.validate(json.loads(smollm2.text(ids)), schema)
        assert len(ids) <= shortest + more


def check_generated(subject: Subject, seed: int) -> None:
    """Outputs of any tokens within the shortest value's, 10 % and 4 more, are whole and valid."""
    schema, value = generated(seed)
    jsonschema.validate(value, schema)
    grammar = subject.compiler.compile(lower("json_schema", json.dumps(schema)))
    budget = math.ceil(1.1 * subject.count(value)) + 4
    ids = drawn(grammar, budget, Random(seed), subject.end)
    jsonschema.validate(json.loads(subject.text(ids)), schema)


@pytest.mark.parametrize("seed", [1, 3, 9, 12, 19, 26])
def test_a_generated_schema(subject: Subject, seed: int) -> None:
    check_generated(subject, seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 500, 50))
def test_generated_schemas(subject: Subject, start: int) -> None:
    for seed in range(start, start + 50):
        check_generated(subject, seed)


def test_a_matcher_made_anew_chooses_the_same(smollm2: Subject) -> None:
    """One that goes on keeps the way that it found; one of a later attempt finds it again."""
    schema, value = generated(38)
    grammar = smollm2.compiler.compile(lower("json_schema", json.dumps(schema)))
    budget = smollm2.count(value) + 20
    pairs = list(chosen(grammar, budget, Random(5), smollm2.end))
    assert sum(sampled != taken for sampled, taken in pairs) > 10
    ids = [taken for _, taken in pairs]
    for cut in range(1, len(ids), 9):
        resumed = grammar.matcher(ids[:cut])
        again = [
            resumed.choose(sampled, budget - at - 1)
            for at, (sampled, _) in enumerate(pairs[cut:], cut)
        ]
        assert again == ids[cut:]


def test_a_way_of_more_than_a_thousand_tokens(smollm2: Subject) -> None:
    """30 required UUIDs."""
    uuid = "00000000-0000-0000-0000-000000000000"
    schema = required(30, {"type": "string", "format": "uuid"})
    shortest = smollm2.count(each(30, uuid))
    assert shortest > 1024
    grammar = smollm2.compiler.compile(lower("json_schema", json.dumps(schema)))
    assert grammar.way is not None
    assert grammar.way.num_tokens <= shortest
    ids = drawn(grammar, shortest + 50, Random(1), smollm2.end)
    jsonschema.validate(json.loads(smollm2.text(ids)), schema)


def test_a_limit_below_the_shortest_changes_nothing(smollm2: Subject) -> None:
    """There is no way then: what the model says is cut, as without a grammar."""
    schema = lower("json_schema", json.dumps(required(4, STRING)))
    ids = drawn(smollm2.compiler.compile(schema), 20, Random(7), smollm2.end)
    assert len(ids) == 20
    with pytest.raises(json.JSONDecodeError):
        json.loads(smollm2.text(ids))
