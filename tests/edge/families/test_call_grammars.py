"""What a family's models are held to: its grammars take what its writer writes, and no more."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import jsonschema
import pytest
from tests.core.byte_grammars import END, write_byte_tokenizer
from tests.edge.families.transcripts import CASES, TOOLS, described, model, read
from tests.vocabularies import vocabulary
from tokenizers import Tokenizer

from skerry_core.grammar.compiler import GrammarCompiler
from skerry_core.grammar.lowering import lower
from skerry_core.grammar.matcher import CompiledGrammar, GrammarError
from skerry_edge.families.family import Family, ReaderSpec
from skerry_edge.families.recognition import Thought
from skerry_edge.families.table import ENTRIES, TAUGHT
from skerry_edge.families.writer import written_calls
from skerry_edge.output.asked import OutputAsked
from skerry_edge.output.plan import OutputPlan, plan_fields

FAMILIES = {entry.family.name: entry.family for entry in ENTRIES} | {TAUGHT.name: TAUGHT}
EACH = [
    (name, has_tokens)
    for name, family in FAMILIES.items()
    for has_tokens in (False, True)
    if family.tokens or not has_tokens
    if has_tokens or not (family.is_marked_by_tokens or family.messages)
]
PATH = {"path": 'a "</x>" {}', "count": 3, "deep": True, "names": ["b", "ü"]}
STOP: dict[str, Any] = {}


@cache
def compiler(tokens: tuple[str, ...]) -> GrammarCompiler:
    with TemporaryDirectory() as folder:
        tokenizer = write_byte_tokenizer(Path(folder) / "tokenizer.json", *tokens)
        size = END + 1 + len(tokens)
        return GrammarCompiler(tokenizer, vocab_size=size, stop_token_ids=(END,))


@cache
def bound(name: str, has_tokens: bool) -> Family:
    family = FAMILIES[name]
    ids = {token: END + 1 + number for number, token in enumerate(family.tokens)}
    return family.bound(ids.get if has_tokens else lambda _: None)


def planned(family: Family, **fields: Any) -> OutputPlan:
    asked: dict[str, Any] = {"tools": described()} | fields
    return plan_fields(family, OutputAsked(**asked))


def grammar(family: Family, plan: OutputPlan, thought: Thought = "closed") -> CompiledGrammar:
    spec = plan.grammar_after(thought)
    assert spec is not None
    tokens = family.tokens if family.token_ids else ()
    return compiler(tokens).compile(lower(spec.kind, spec.source), spec.calls)


def ids(family: Family, output: str) -> list[int]:
    known = dict(family.token_ids)
    return [
        id_
        for letter in output
        for id_ in ([known[letter]] if letter in known else letter.encode())
    ]


def accepts(family: Family, automaton: CompiledGrammar, output: str) -> bool:
    try:
        return automaton.matcher(ids(family, output))._matcher.is_accepting()
    except GrammarError:
        return False


def calls(family: Family, *made: tuple[str, dict[str, Any]]) -> str:
    """Calls as a model writes them, with all that comes before in an output of nothing else."""
    style = family.messages
    if style is not None:
        [(name, arguments)] = made
        head = f"{style.channel}{style.call} to={style.recipient}{name} {style.constrain}json"
        return f"{head}{style.message}{json.dumps(arguments, ensure_ascii=False)}"
    numbered = [f"abcdefgh{number}" for number in range(len(made))]
    return written_calls(family, made, ids=numbered, tools=TOOLS)


def text(family: Family, said: str) -> str:
    style = family.messages
    return said if style is None else f"{style.channel}{style.answer}{style.message}{said}"


def is_single(family: Family) -> bool:
    return family.messages is not None or not family.calls.trigger


@pytest.mark.parametrize(("name", "has_tokens"), EACH)
def test_what_each_choice_allows(name: str, has_tokens: bool) -> None:
    family = bound(name, has_tokens)
    one, other = calls(family, ("get", PATH)), calls(family, ("stop", STOP))
    said = text(family, "So it <is>.")
    auto = grammar(family, planned(family))
    for right in (one, other, said):
        assert accepts(family, auto, right), right
    required = grammar(family, planned(family, tool_choice="required"))
    assert accepts(family, required, one)
    assert not accepts(family, required, said)
    chosen = {"type": "function", "function": {"name": "stop"}}
    named = grammar(family, planned(family, tool_choice=chosen))
    assert accepts(family, named, other)
    assert not accepts(family, named, one)
    for wrong in (("get", {"count": "three"}), ("move", {})):
        for automaton in (auto, required):
            assert not accepts(family, automaton, calls(family, wrong)), wrong
    if is_single(family):
        return
    two = calls(family, ("get", PATH), ("stop", STOP))
    assert accepts(family, required, two)
    assert accepts(family, auto, "Let me." + family.calls.lead + two)
    assert not accepts(family, named, calls(family, ("stop", STOP), ("stop", STOP)))
    single = grammar(family, planned(family, tool_choice="required", parallel_tool_calls=False))
    assert accepts(family, single, one)
    assert not accepts(family, single, two)


@pytest.mark.parametrize(("name", "has_tokens"), EACH)
def test_no_call_where_none_is_allowed(name: str, has_tokens: bool) -> None:
    family = bound(name, has_tokens)
    plan = planned(family, tool_choice="none")
    if not family.calls.trigger and family.messages is None:
        assert plan.grammar is None
        return
    none = grammar(family, plan)
    assert accepts(family, none, text(family, "So."))
    assert not accepts(family, none, calls(family, ("stop", STOP)))


@pytest.mark.parametrize(("name", "has_tokens"), EACH)
def test_a_thought_comes_before(name: str, has_tokens: bool) -> None:
    family = bound(name, has_tokens)
    reasoning = family.reasoning
    if reasoning is None:
        return
    said, call = text(family, "So."), calls(family, ("get", PATH))
    if (style := family.messages) is not None:
        again = f"{style.start}assistant"
        thought = f"{reasoning.begin}Hm.{reasoning.end}{again}"
        automaton = grammar(family, planned(family, tool_choice="required"), "may")
        assert accepts(family, automaton, thought + thought + call)
        assert not accepts(family, automaton, thought + said)
        return
    thought = f"Hm.\n{reasoning.end}\n\n"
    for choice, rights in {"auto": (said, call), "required": (call,)}.items():
        plan = planned(family, tool_choice=choice)
        opened, may = grammar(family, plan, "open"), grammar(family, plan, "may")
        for right in rights:
            assert accepts(family, opened, thought + right), right
            assert accepts(family, may, reasoning.begin + thought + right), right
            assert accepts(family, may, right), right
        assert accepts(family, opened, "Hm." + call)  # which ends the thought
        assert accepts(family, opened, said + thought + call)
        assert not accepts(family, opened, said)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    asked: list[tuple[dict[str, Any], str]] = [
        ({"response_format": form}, '{"a": 1}'),
        ({"guided_regex": "[a/b]+"}, "a/b"),
        ({"guided_choice": ["yes", "no"]}, "no"),
        ({"guided_grammar": 'start: "x" rest\nrest: "y"'}, "xy"),
    ]
    for fields, answer in asked:
        plan = planned(family, tools=None, **fields)
        for state, before in (("open", thought), ("may", reasoning.begin + thought), ("may", "")):
            automaton = grammar(family, plan, "open" if state == "open" else "may")
            assert accepts(family, automaton, before + answer), (fields, before)
            assert not accepts(family, automaton, before + "{"), (fields, before)


@pytest.mark.parametrize(("name", "has_tokens"), EACH)
def test_whatever_the_grammar_makes_is_read_back_as_a_valid_call(
    name: str, has_tokens: bool
) -> None:
    family = bound(name, has_tokens)
    required = planned(family, tool_choice="required", parallel_tool_calls=False)
    automaton = grammar(family, required)
    characters = {id_: character for character, id_ in family.token_ids}
    for seed in range(3):
        rng, matcher, made = Random(seed), automaton.matcher(), list[int]()
        while not matcher.is_finished and len(made) < 300 and END not in made:
            matcher.fill()
            mask = matcher.mask
            assert mask is not None
            size = END + 1 + len(family.token_ids)
            may = [each for each in range(size) if mask[each >> 5] >> (each & 31) & 1]
            closing = [each for each in may if each >= END or each in b'"}]<\n']
            made.append(rng.choice(closing if closing and rng.random() < 0.5 else may))
            matcher.advance(made[-1])
        if not (matcher.is_finished or END in made):
            continue
        data = b"".join(
            characters[each].encode() if each in characters else bytes([each])
            for each in made
            if each != END
        )
        spec = ReaderSpec(family=family, tools=TOOLS)
        found = read(spec, [data.decode()])
        assert found.text == "" or family.messages is not None
        [(called, arguments)] = found.calls
        assert found.num_whole == 1
        jsonschema.validate(json.loads(arguments), TOOLS[called])


def test_templates_are_of_the_same_families() -> None:
    for name, case in CASES.items():
        assert model(name, has_tokens=True).family.calls == bound_like(name, case.family)


def bound_like(name: str, family: str) -> object:
    return FAMILIES[family].bound(model(name, has_tokens=True).ids.get).calls


def test_calls_in_a_published_vocabulary() -> None:
    """Qwen's: a call as its tokenizer splits it is taken, token by token, behind a thought."""
    published = vocabulary("qwen")
    family = FAMILIES["hermes"]
    compiled = GrammarCompiler(
        published.tokenizer, vocab_size=published.size, stop_token_ids=(published.end,)
    )
    spec = planned(family, tool_choice="required").grammar_after("open")
    assert spec is not None
    automaton = compiled.compile(lower(spec.kind, spec.source), spec.calls)
    tokenizer = Tokenizer.from_file(str(published.tokenizer))
    call = calls(family, ("get", PATH), ("stop", STOP))
    made = tokenizer.encode(f"Hm <b>.\n</think>\n\n{call}").ids
    matcher = automaton.matcher()
    for each in made:
        matcher.fill()
        assert matcher.mask is not None
        assert matcher.mask[each >> 5] >> (each & 31) & 1, tokenizer.decode([each])
        matcher.advance(each)
    assert matcher._matcher.is_accepting()
    wrong = tokenizer.encode("Hm.\n</think>\n\nNo call.").ids
    with pytest.raises(GrammarError):
        automaton.matcher(wrong)
