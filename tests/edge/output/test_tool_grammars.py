"""The grammar that holds a model to its tools, and calls read back in any pieces."""

from __future__ import annotations

import asyncio
import json
from random import Random

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.byte_grammars import END, compiled, text
from tests.edge.output.two_tools import (
    MARKED,
    NESTED,
    PARIS,
    SCHEMAS,
    Template,
    accepts,
    call,
    listed,
    parsed,
    plan,
)
from tests.edge.scripted_region import MODEL
from tests.edge.support import Deployment
from tests.properties import examples

from skerry.errors import PromptTooLong
from skerry.wire import Message
from skerry_edge.families.deltas import CallDelta, TextDelta
from skerry_edge.families.family import Family, ReaderSpec
from skerry_edge.families.reader import Reader
from skerry_edge.families.recognition import family_of
from skerry_edge.families.table import HERMES, LLAMA, MISTRAL_LIST, TAUGHT
from skerry_edge.text.prompts import chat_prompt


def test_families_are_known_by_their_templates() -> None:
    for family in (TAUGHT, HERMES, LLAMA):
        assert family_of(Template(family).chat_template).name == family.name
    mistral = Template(MISTRAL_LIST)
    assert family_of(mistral.chat_template, mistral.control_id).calls == MARKED.calls
    unmarked = family_of(mistral.chat_template)
    assert unmarked.name == TAUGHT.name  # the vocabulary has no such token


# --- what the grammar holds ----------------------------------------------------------------------


@pytest.mark.parametrize("family", [TAUGHT, HERMES, LLAMA], ids=lambda family: family.name)
def test_required_is_calls_and_nothing_else(family: Family) -> None:
    required = plan(family, tools=NESTED, tool_choice="required")
    one, other = call("weather", PARIS, family), call("add", {"a": 1, "b": [2]}, family)
    assert accepts(required, one)
    assert accepts(required, other)
    assert accepts(required, f"{one}\n{other}") is (family is not LLAMA)
    for wrong in ("", "Hello.", call("sub", {}, family), call("add", {"a": "1"}, family)):
        assert not accepts(required, wrong)
    assert not accepts(required, call("weather", PARIS | {"more": 1}, family))


def test_one_call_at_most() -> None:
    one = call("add", {"a": 1})
    single = plan(tools=NESTED, tool_choice="required", parallel_tool_calls=False)
    assert accepts(single, one)
    assert not accepts(single, f"{one}\n{one}")
    named = plan(tools=NESTED, tool_choice={"type": "function", "function": {"name": "add"}})
    assert accepts(named, one)
    assert not accepts(named, f"{one}\n{one}")
    assert not accepts(named, call("weather", PARIS))


@pytest.mark.parametrize("family", [TAUGHT, LLAMA], ids=lambda family: family.name)
def test_auto_is_text_or_calls_that_are_right(family: Family) -> None:
    auto = plan(family, tools=NESTED)
    assert accepts(auto, "")
    assert accepts(auto, "Hello <b>you</b>.")
    assert accepts(auto, call("weather", PARIS, family))
    assert not accepts(auto, call("sub", {}, family))
    if family is TAUGHT:
        assert accepts(
            auto, "Let me look.\n" + call("weather", PARIS) + "\n" + call("add", {"a": 1})
        )
        assert not accepts(auto, "Look: <tool_call>oops")


def test_none_is_text_without_calls() -> None:
    none = plan(tools=NESTED, tool_choice="none")
    assert none.called is None
    assert accepts(none, "Use <tool> and <tool_call.")
    assert not accepts(none, call("add", {"a": 1}))


def test_tools_beside_json() -> None:
    schema = {"type": "object", "properties": {"done": {"type": "boolean"}}, "required": ["done"]}
    both = plan(tools=NESTED, response_format={"type": "json_schema", "json_schema": schema})
    assert accepts(both, '{"done": true}')
    assert accepts(both, call("add", {"a": 1}))
    assert not accepts(both, "Done.")


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([TAUGHT, LLAMA]))
def test_whatever_is_generated_is_read_back_as_valid_calls(seed: int, family: Family) -> None:
    required = plan(family, tools=NESTED, tool_choice="required", parallel_tool_calls=False)
    assert required.grammar is not None
    matcher = compiled("ebnf", required.grammar.source).matcher()
    rng, ids = Random(seed), list[int]()
    while not matcher.is_finished and len(ids) < 600:
        matcher.fill()
        assert matcher.mask is not None
        choices = [i for i in range(257) if matcher.mask[i >> 5] >> (i & 31) & 1]
        closing = [i for i in choices if i in b'"}]']  # keep it short
        ids.append(rng.choice(closing if closing and rng.random() < 0.3 else choices))
        matcher.advance(ids[-1])
    if not matcher.is_finished:
        return
    said, calls = parsed(family, text(i for i in ids if i != END))
    assert said == ""
    [made] = calls.all
    jsonschema.validate(json.loads(made.arguments), SCHEMAS[made.name])


def test_mistral_calls_stand_in_a_list() -> None:
    one, both = listed(("weather", PARIS)), listed(("weather", PARIS), ("add", {"a": 1}))
    required = plan(MISTRAL_LIST, tools=NESTED, tool_choice="required")
    assert required.family.calls == MARKED.calls
    for right in (one, both, one.replace("S][", "S] [")):
        assert accepts(required, right)
    for wrong in ("", "Hello.", one[:-1], "Hm. " + one, listed(("sub", {})), one + one):
        assert not accepts(required, wrong)
    auto = plan(MISTRAL_LIST, tools=NESTED)
    for right in ("", "Hello [b].", one, "Let me look.\n" + both):
        assert accepts(auto, right)
    assert not accepts(auto, listed(("sub", {})))
    assert not accepts(auto, one + " Done.")
    single = plan(MISTRAL_LIST, tools=NESTED, tool_choice="required", parallel_tool_calls=False)
    assert accepts(single, one)
    assert not accepts(single, both)
    none = plan(MISTRAL_LIST, tools=NESTED, tool_choice="none")
    assert accepts(none, "Hello.")
    assert not accepts(none, one)


def test_a_spelled_mark_is_text_where_it_is_a_control_token() -> None:
    auto = plan(MISTRAL_LIST, tools=NESTED)
    assert auto.grammar is not None
    matcher = compiled("ebnf", auto.grammar.source).matcher(b"[TOOL_CALLS] of the text")
    assert matcher._matcher.is_accepting()
    reader = Reader(ReaderSpec(family=MARKED, tools=SCHEMAS))
    assert reader.push("[TOOL_CALLS][") == [TextDelta("[TOOL_CALLS][")]


# --- what is read --------------------------------------------------------------------------------

OUTPUTS: list[tuple[Family, str, str, list[tuple[str, object]]]] = [
    (TAUGHT, "Hello <b>\n", "Hello <b>\n", []),
    (TAUGHT, "  \n", "  \n", []),
    (TAUGHT, "Half a <tool_", "Half a ", []),
    (TAUGHT, call("add", {"a": 1}), "", [("add", {"a": 1})]),
    (TAUGHT, "\n" + call("add", {}) + "\n" + call("add", {"b": [1, [2]]}) + "\n", "",
     [("add", {}), ("add", {"b": [1, [2]]})]),
    (TAUGHT, "Let me.\n" + call("w", {"c": '}"\\\n</tool_call>'}) + "\nDone.", "Let me.\nDone.",
     [("w", {"c": '}"\\\n</tool_call>'})]),
    (HERMES, call('quo"te', {"é": "ü"}), "", [('quo"te', {"é": "ü"})]),
    (LLAMA, '{"name": "add", "parameters": {"a": 1}}', "", [("add", {"a": 1})]),
    (MARKED, listed(("add", {"a": 1})), "", [("add", {"a": 1})]),
    (MARKED, "Let me.\n" + listed(("a", {"b": "}]"}), ("c", {}), ("d", {})), "Let me.",
     [("a", {"b": "}]"}), ("c", {}), ("d", {})]),
    (MARKED, listed(("a", {})).replace("][", "] ["), "", [("a", {})]),
    (MARKED, "Half a [TOOL_", "Half a [TOOL_", []),
    (LLAMA, 'No: {"name": "add", "parameters": {"a": 1}}',
     'No: {"name": "add", "parameters": {"a": 1}}', []),
]  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(OUTPUTS), st.lists(st.integers(1, 30)))
def test_text_and_calls_in_any_pieces(
    case: tuple[Family, str, str, list[tuple[str, object]]], sizes: list[int]
) -> None:
    family, output, said, wanted = case
    got, calls = parsed(family, output, sizes)
    assert got == said
    assert [(each.name, json.loads(each.arguments)) for each in calls.all] == wanted
    assert len({each.id for each in calls.all}) == len(wanted)


@pytest.mark.parametrize("end", range(1, 60))
def test_a_call_that_is_cut_leaks_no_markup(end: int) -> None:
    output = call("add", {"a": 1})[:end]
    said, calls = parsed(TAUGHT, output)
    assert "tool_call>" not in said
    assert all(each.name == "add" for each in calls.all)


def test_arguments_are_told_as_they_come() -> None:
    reader = Reader(ReaderSpec(family=TAUGHT, tools=SCHEMAS))
    deltas = [delta for letter in call("add", {"a": 1}) for delta in reader.push(letter)]
    assert all(isinstance(delta, CallDelta) for delta in deltas)
    begun, *parts, end = [delta for delta in deltas if isinstance(delta, CallDelta)]
    assert (begun.name, begun.arguments, begun.ends) == ("add", "", False)
    assert [delta.arguments for delta in parts] == list('{"a": 1}')
    assert all(delta.id is None and not delta.ends for delta in parts)
    assert (end.arguments, end.ends) == ("", True)


# --- conversations -------------------------------------------------------------------------------


def test_the_arguments_of_calls_count_as_text(edge: Deployment) -> None:
    spec, text = edge.edge.served(MODEL)
    said = Message("assistant", None, tool_calls=[{"name": "f", "arguments": "x" * 1_000_000}])
    with pytest.raises(PromptTooLong, match="The prompt has 1000"):
        asyncio.run(chat_prompt(text, spec, [said], edge.edge.limits, edge.edge.desk, "t"))
