"""Outputs that are whole within `max_tokens`, however much the model would rather go on."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.core.byte_grammars import END, VOCAB, compiled, text
from tests.core.grammar.test_grammar_engine import answer_of, person
from tests.core.schemas import Schema, schemas
from tests.core.toy_oracle import request
from tests.properties import examples

from skerry_core.grammar.closing import MAX_CLOSED, Closings
from skerry_core.grammar.matcher import Matcher

OPEN: Schema = {  # everything in it may go on for ever
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "pets": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "legs": {"type": "number"}},
                "required": ["name", "legs"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["name", "pets"],
    "additionalProperties": False,
}
SHORTEST = len('{"name": "", "pets": []}')


def drawn(matcher: Matcher, rng: Random, budget: int) -> list[int]:
    """A random output of at most `budget` tokens; ends that could be put off are."""
    ids: list[int] = []
    while not matcher.is_finished and len(ids) < budget:
        ids += drawn_next(matcher, rng, budget - len(ids) - 1)
    return ids


def drawn_next(matcher: Matcher, rng: Random, left: int) -> list[int]:
    matcher.fill()
    assert matcher.mask is not None
    choices = [i for i in range(VOCAB) if matcher.mask[i >> 5] >> (i & 31) & 1]
    longer = [i for i in choices if i != END and i not in b'"}]'] or choices
    sampled = rng.choice(longer if rng.random() < 0.7 else choices)
    return [matcher.choose(sampled, left)]


@settings(max_examples=examples(20), deadline=None)
@given(budget=st.integers(1, 120), seed=st.integers(0, 1 << 32))
def test_a_matcher_that_was_made_anew_chooses_the_same(budget: int, seed: int) -> None:
    """One that goes on remembers which way it found; one of a later attempt looks for it."""
    grammar = compiled("json_schema", json.dumps(OPEN))
    ids = drawn(grammar.matcher(), Random(seed), budget)
    rng, again = Random(seed), list[int]()
    while len(again) < len(ids):
        again += drawn_next(grammar.matcher(again), rng, budget - len(again) - 1)
    assert again == ids


MANY_CHOICES: Schema = {
    "type": "object",
    "properties": {
        "b": {"type": "string", "format": "date"},
        "a": {
            "type": "object",
            "properties": {
                "a": {"type": "string", "pattern": "^[a-c]{2,4}$", "maxLength": 12},
                "b": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 1000},
            },
            "required": [],
            "additionalProperties": False,
        },
    },
    "required": [],
    "additionalProperties": False,
}


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(SHORTEST, 200), st.integers(0, 1 << 32))
def test_json_is_whole_within_any_budget_that_it_fits(budget: int, seed: int) -> None:
    matcher = compiled("json_schema", json.dumps(OPEN)).matcher()
    ids = drawn(matcher, Random(seed), budget)
    assert matcher.is_finished
    jsonschema.validate(json.loads(text(ids)), OPEN)


@settings(max_examples=examples(30), deadline=None)
@given(schemas(), st.integers(60, 120), st.integers(0, 1 << 32))
@example(MANY_CHOICES, 60, 0)
def test_any_schema(schema: Schema, budget: int, seed: int) -> None:
    grammar = compiled("json_schema", json.dumps(schema))
    assert grammar.way is not None
    ids = drawn(grammar.matcher(), Random(seed), max(budget, grammar.way.num_tokens))
    jsonschema.validate(json.loads(text(ids)), schema)


def test_a_budget_below_the_shortest_is_cut() -> None:
    matcher = compiled("json_schema", json.dumps(OPEN)).matcher()
    ids = drawn(matcher, Random(1), SHORTEST - 1)
    assert len(ids) == SHORTEST - 1
    assert not matcher.is_finished


def test_an_end_that_is_far() -> None:
    grammar = compiled("regex", "a{3000}|b{5000}")
    assert grammar.way is not None
    assert grammar.way.num_tokens == 3000
    matcher = grammar.matcher()
    ids = [matcher.choose(byte, 2999) for byte in b"b"]
    assert ids == [ord("a")]  # the other end would not fit


def test_an_end_behind_free_text_is_not_looked_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a bracket may be closed for ever. As many as may be open in JSON are closed."""
    steps, step = 0, Closings._step

    def counted(self: Closings, *arguments: Any) -> bytes:
        nonlocal steps
        steps += 1
        return step(self, *arguments)

    monkeypatch.setattr(Closings, "_step", counted)
    thought = 'start: TEXT "</think>" answer\nanswer: %json {"type": "integer"}\nTEXT: /(?s:.*)/'
    assert compiled("ebnf", thought).way is None
    assert steps > MAX_CLOSED
    assert steps <= MAX_CLOSED + 10
    nested: Schema = {"const": 0}
    for _ in range(60):
        nested = {"type": "array", "items": nested, "minItems": 1, "maxItems": 1}
    way = compiled("json_schema", json.dumps(nested)).way
    assert way is not None
    assert way.text == b"[" * 60 + b"0" + b"]" * 60


def test_free_text_ends_with_the_budget_and_not_before() -> None:
    grammar = compiled("regex", "(.|\n)*")
    rng = Random(2)
    ids = drawn(grammar.matcher(), rng, 50)
    assert len(ids) == 50 or ids[-1] == END


STYLES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.5, "seed": 5},
    "logprobs": {"temperature": 1.0, "seed": 3, "logprobs": 2},
}
STRINGS = compiled("json_schema", json.dumps(OPEN))


@pytest.mark.parametrize("budget", [SHORTEST, SHORTEST + 1, 60])
@pytest.mark.parametrize("style", STYLES)
def test_in_the_engine(style: str, budget: int) -> None:
    fields: dict[str, Any] = {"grammar": STRINGS, "max_tokens": budget} | STYLES[style]
    answer = answer_of(person(**fields))
    assert answer.finish_reason == "stop"
    jsonschema.validate(json.loads(text(answer.token_ids)), OPEN)
    for cut in range(1, len(answer.token_ids), 7):
        before = tuple(answer.token_ids[:cut])
        resumed = answer_of(person(output_ids=before, **fields))
        assert before + tuple(resumed.token_ids) == tuple(answer.token_ids)


def test_logprobs_are_those_of_the_tokens_that_were_taken() -> None:
    """A token that was put in another's place has its own probability."""
    answer = answer_of(person(grammar=STRINGS, max_tokens=SHORTEST, logprobs=0))
    assert len(answer.logprobs) == len(answer.token_ids)
    prompt_ids = request().prompt_ids + tuple(answer.token_ids)
    whole = request(prompt_ids=prompt_ids, prompt_logprobs=0, max_tokens=1)
    expected = answer_of(whole).prompt_logprobs[-len(answer.token_ids) :]
    assert [logprob for logprob, _ in expected] == [logprob for logprob, _ in answer.logprobs]
