"""Patterns of schemas: what is said to be sound compiles, what is ordinary is sound."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.byte_grammars import compiled
from tests.properties import examples

from skerry_core.grammar.matcher import GrammarError
from skerry_edge.output.patterns import pattern_fault

ORDINARY = [
    "^[a-z0-9]+(?:-[a-z0-9]+)*$",
    "^([^,]+,)*[^,]+$",
    r"^\+?[1-9]\d{1,14}$",
    r"^[\w.+-]+@[A-Za-z0-9-]+\.[\w.-]+$",
    r"^(\d{3}|[A-Z]{2})$",
    "^$|^a+$",
    "^#[0-9a-fA-F]{6}$",
    "^https?://",
    r"^[^\s]+$",
    r"^\d+(\.\d+)?$",
    r"^(?<year>\d{4})-(?P<month>\d{2})$",
    r"[\u0041-\u005A\xe9]",
    r"\p{Lu}\p{L}*",
    "^(?:a|b|^c)",
    r"^\/api\/v\d+\/",
    "(a{2,3}?)+",
    "]}",
]
REFUSED = {
    r"^(?=.*\d)(?=.*[a-z]).{8,}$": "look-around",
    "^(?!admin$)": "look-around",
    "(?<=a)b": "look-around",
    "(?<!a)b": "look-around",
    r"(a|b)\1": "back reference",
    r"(?<x>a)\k<x>": "back reference",
    "(?P<x>a)(?P=x)": "back reference",
    r"\bword\b": "word boundar",
    "a^b": "anchor",
    "a$b": "anchor",
    "(a$)b": "anchor",
}
NOT_KNOWN = [
    "[", "(", ")", "*a", "a{3,1}", "a{,3}", "[b-a]", r"\h", r"\cA", "[^]", "[[a]]", "[a&&b]",
    r"[\w-.]", "(?>a)", "(^a)*", "^*", r"\ud83d", r"\Z", "(?<x>a)(?<x>b)", "\\",
]  # fmt: skip
PIECES = [
    *"ab1-^$|()[]{}*+?.,:<>=!&~ é/#\\",
    *(r"\d", r"\w", r"\b", r"\1", r"\-", r"\.", r"\x41", r"\u00e9", r"\p{L}", r"\n", r"\/", r"\A"),
    *("(?:", "(?=", "(?!", "(?<x>", "(?P<y>", "(?i:", "[a-z]", "[^a]", "{2}", "{1,3}", "{3,1}"),
]


def refusal(pattern: str) -> str | None:
    """Why llguidance does not compile it."""
    value = {"type": "string", "pattern": pattern}
    schema = {"type": "object", "properties": {"a": value}, "required": ["a"]}
    try:
        compiled("json_schema", json.dumps(schema))
    except GrammarError as error:
        return str(error)
    return None


@pytest.mark.parametrize("pattern", ORDINARY)
def test_an_ordinary_pattern_is_sound(pattern: str) -> None:
    assert pattern_fault(pattern) is None
    assert refusal(pattern) is None


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_no_grammar_holds_is_named(pattern: str) -> None:
    fault = pattern_fault(pattern)
    assert fault is not None
    assert fault.is_certain
    assert REFUSED[pattern] in fault.what
    assert refusal(pattern) is not None


@pytest.mark.parametrize("pattern", NOT_KNOWN)
def test_what_is_written_in_one_dialect_only(pattern: str) -> None:
    fault = pattern_fault(pattern)
    assert fault is not None
    assert not fault.is_certain


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=10).map("".join))
def test_what_is_sound_compiles(pattern: str) -> None:
    if pattern_fault(pattern) is not None:
        return
    why = refusal(pattern)
    assert why is None or "nsatisfiable" in why, why


@pytest.mark.parametrize("pattern", ["(", "[", r"\h", "a{2,1}", "x^", r"\bx", "(?=a)", "a**{"])
@pytest.mark.parametrize("is_json", [True, False])
def test_the_error_of_a_regex_is_a_sentence(pattern: str, is_json: bool) -> None:
    if is_json:
        why = refusal(pattern)
    else:
        with pytest.raises(GrammarError) as refused:
            compiled("regex", pattern)
        why = str(refused.value)
    assert why is not None
    assert re.fullmatch(rf"the regex /{re.escape(pattern)}/ cannot be used: [a-z][^:^]+", why), why


def test_a_long_pattern_takes_no_longer_than_it_is_long() -> None:
    """Processor time of a pattern ten times as long."""
    spent = []
    for number in (2_000, 20_000):
        pattern = "(?:a[b-c]{1,2}|" * 30 + r"x\d" * number + ")" * 30
        began = time.process_time()
        assert pattern_fault(pattern) is None
        spent.append(time.process_time() - began)
    assert spent[1] < 100 * max(spent[0], 1e-3)
    assert pattern_fault("(" * 100_000) is not None
