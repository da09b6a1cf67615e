"""Grammars alone: what they allow, what they refuse, and that both are bounded."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.byte_grammars import END, VOCAB, compiled, text
from tests.core.schemas import Schema, schemas
from tests.properties import examples

from skerry_core.grammar.compiler import GrammarCompiler
from skerry_core.grammar.lowering import GrammarKind, lower
from skerry_core.grammar.matcher import GrammarError, Matcher


def allowed(matcher: Matcher) -> list[int]:
    """Token ids that may come next."""
    matcher.fill()
    assert matcher.mask is not None
    bits = np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


def walk(matcher: Matcher, rng: Random, limit: int = 3000) -> list[int]:
    """A random output that follows the grammar, to its end."""
    token_ids: list[int] = []
    while not matcher.is_finished:
        assert len(token_ids) < limit
        token_ids.append(rng.choice(allowed(matcher)))
        matcher.advance(token_ids[-1])
    return token_ids


# --- what is allowed -----------------------------------------------------------------------------


@settings(max_examples=examples(100), deadline=None)
@given(schemas(), st.integers(0, 1 << 32))
def test_every_output_of_a_schema_is_valid(schema: Schema, seed: int) -> None:
    grammar = compiled("json_schema", json.dumps(schema))
    output = text(walk(grammar.matcher(), Random(seed)))
    jsonschema.validate(
        json.loads(output), schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )


@pytest.mark.parametrize(
    ("kind", "source", "outputs"),
    [
        ("regex", "ab?c", {"abc", "ac"}),
        ("regex", "[x-z]", {"x", "y", "z"}),
        ("ebnf", 'start: "é" | "\\"\\n"', {"é", '"\n'}),
        ("ebnf", 'root ::= yes | "no"\nyes ::= "yes" "!"?', {"yes", "yes!", "no"}),
        ("json_schema", '{"enum": [1, "a/b", null]}', {"1", '"a/b"', "null"}),
        ("json_schema", '{"const": {"b": 1, "a": [true]}}', {'{"b": 1, "a": [true]}'}),
    ],
)
def test_all_outputs(kind: GrammarKind, source: str, outputs: set[str]) -> None:
    grammar = compiled(kind, source)
    assert {text(walk(grammar.matcher(), Random(seed))) for seed in range(40)} == outputs


def test_the_end_may_come_only_when_the_output_is_whole() -> None:
    matcher = compiled("regex", "ab*").matcher()
    assert allowed(matcher) == [ord("a")]
    matcher.advance(ord("a"))
    assert matcher._matcher.is_accepting()
    assert not matcher.is_finished
    assert allowed(matcher) == [ord("b"), END]
    matcher.advance(END)
    assert matcher.is_finished


def test_a_grammar_that_can_only_end_is_finished_without_an_end_token() -> None:
    matcher = compiled("json_schema", '{"type": "null"}').matcher()
    for letter in b"null":
        assert not matcher.is_finished
        matcher.advance(letter)
    assert matcher.is_finished


def test_a_matcher_goes_on_after_a_transcript() -> None:
    grammar = compiled("json_schema", '{"type": "array", "items": {"type": "integer"}}')
    whole = walk(grammar.matcher(), Random(3))
    for length in range(len(whole)):
        fresh, resumed = grammar.matcher(), grammar.matcher(whole[:length])
        for token_id in whole[:length]:
            fresh.advance(token_id)
        assert resumed.num_tokens == fresh.num_tokens == length
        assert allowed(resumed) == allowed(fresh)


def test_matchers_of_one_grammar_are_independent() -> None:
    grammar = compiled("regex", "(ab)+")
    first, second = grammar.matcher(), grammar.matcher()
    first.advance(ord("a"))
    assert allowed(second) == [ord("a")]
    assert allowed(first) == [ord("b")]


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "source", "said"),
    [
        ("regex", "(", "regex"),
        ("regex", r"a\b", "word boundaries"),
        ("regex", "(?=a)b", "regex"),
        ("ebnf", "start: nothing", "nothing"),
        ("json_schema", "{", "EOF"),
        ("json_schema", '{"not": {}}', "not"),
        ("json_schema", '{"type": "integer", "minimum": 2, "maximum": 1}', "nsatisfiable"),
        ("json_schema", '{"$ref": "http://example.org/schema"}', "http://example.org/schema"),
    ],
)
def test_a_grammar_that_cannot_be_used(kind: GrammarKind, source: str, said: str) -> None:
    with pytest.raises(GrammarError, match=said):
        compiled(kind, source)


def test_a_token_that_does_not_follow() -> None:
    matcher = compiled("regex", "ab").matcher()
    with pytest.raises(GrammarError):
        matcher.advance(ord("b"))
    with pytest.raises(GrammarError):
        compiled("regex", "ab").matcher([ord("x")])


def test_a_mask_that_takes_too_much_is_refused() -> None:
    source = "start: T\nT: " + " & ".join(f"/(.*{letter}.*){{30}}/" for letter in "abcde")
    with pytest.raises(GrammarError, match="too many"):
        walk(compiled("ebnf", source).matcher(), Random(1))


def test_errors_are_one_short_line() -> None:
    with pytest.raises(GrammarError) as caught:
        compiled("regex", "(" * 5000)
    assert len(str(caught.value)) <= 500
    assert "\n" not in str(caught.value)


def test_a_tokenizer_of_another_kind(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    with pytest.raises(GrammarError, match="tokenizer"):
        GrammarCompiler(file, vocab_size=VOCAB, stop_token_ids=(END,))


def test_lowering_keeps_the_kind() -> None:
    assert "json_schema" in lower("json_schema", '{"type": "null"}')
