"""Every family's published template lays out a turn, and its reader finds that turn again."""

from __future__ import annotations

import json
from random import Random

import pytest
from tests.edge.families.spoken_turns import turn
from tests.edge.families.transcripts import CASES, TEMPLATES, Model, ReadTurn, Turn, model

from skerry_edge.families.recognition import family_of, thought_at
from skerry_edge.families.table import ENTRIES, TAUGHT

FEW = 60
MANY = 100_000  # of a family
EACH = [(name, has_tokens) for name, case in CASES.items() for has_tokens in case.are_tokens]


def pieces_of(output: str, rng: Random) -> list[str]:
    pieces, rest = [], output
    while rest:
        size = rng.randint(1, 9)
        pieces.append(rest[:size])
        rest = rest[size:]
    return pieces


def check(turn: Turn, model: Model, rng: Random) -> None:
    """A turn as its template lays it out, read whole, by letters, in pieces, and cut."""
    output, is_open = model.output(turn)
    whole = model.read([output], is_open=is_open)
    about = (turn, output, whole)
    assert whole.thought == turn.thought, about
    assert whole.text == turn.text, about
    assert [name for name, _ in whole.calls] == [name for name, _ in turn.calls], about
    for (_, arguments), (_, wanted) in zip(whole.calls, turn.calls, strict=True):
        assert json.loads(arguments) == wanted, about
    assert (whole.num_whole, whole.is_cut) == (len(turn.calls), False), about
    assert model.read(list(output), is_open=is_open) == whole, about
    assert model.read(pieces_of(output, rng), is_open=is_open) == whole, about
    end = rng.randint(0, len(output))
    cut = model.read([output[:end]], is_open=is_open, is_ended=False)
    check_cut(cut, whole, (output[:end], *about))
    assert model.read(list(output[:end]), is_open=is_open, is_ended=False) == cut, about


def check_cut(cut: ReadTurn, whole: ReadTurn, about: object) -> None:
    """What a cut output gives is the beginning of what the whole gives."""
    assert whole.thought.startswith(cut.thought), about
    assert whole.text.startswith(cut.text.rstrip()), about
    assert len(cut.calls) <= len(whole.calls), about
    for number, (name, arguments) in enumerate(cut.calls):
        assert name == whole.calls[number][0], about
        assert whole.calls[number][1].startswith(arguments), about
    assert cut.num_whole in (len(cut.calls), len(cut.calls) - 1), about


@pytest.mark.parametrize(("name", "has_tokens"), EACH)
def test_what_a_template_lays_out_is_read_back(name: str, has_tokens: bool) -> None:
    of, rng = model(name, has_tokens=has_tokens), Random(f"{name} {has_tokens}")
    assert of.family.name == CASES[name].family
    for _ in range(FEW):
        check(turn(rng, of), of, rng)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("name", "has_tokens"), EACH)
def test_many_turns_are_read_back(name: str, has_tokens: bool) -> None:
    of, rng = model(name, has_tokens=has_tokens), Random(f"many {name} {has_tokens}")
    of_family = [each for each, _ in EACH if CASES[each].family == CASES[name].family]
    for _ in range(MANY // len(of_family)):
        check(turn(rng, of), of, rng)


# --- which family a model is of ------------------------------------------------------------------


def test_every_entry_has_a_template_and_every_template_a_case() -> None:
    assert {path.stem for path in TEMPLATES.glob("*.jinja")} == set(CASES)
    assert {entry.family.name for entry in ENTRIES} == {case.family for case in CASES.values()}
    names = [entry.family.name for entry in ENTRIES]
    assert len(set(names)) == len(names)


THINKING = {
    "qwen3": ("enable_thinking", None),
    "qwen3.5": ("enable_thinking", None),
    "gpt-oss": (None, "reasoning_effort"),
    "deepseek-v3.1": ("enable_thinking", None),
    "deepseek-r1": (None, None),
    "ministral-3": (None, None),
    "glm-4.6": ("enable_thinking", None),
    "glm-4.7": ("enable_thinking", None),
    "granite-3.3": ("thinking", None),
    "gemma-4": ("enable_thinking", None),
}
"""Templates whose models think: the variables that say whether, and how much."""


@pytest.mark.parametrize("name", CASES)
def test_who_thinks_and_what_switches_it(name: str) -> None:
    reasoning = model(name, has_tokens=True).family.reasoning
    found = None if reasoning is None else (reasoning.switch, reasoning.effort)
    assert found == THINKING.get(name)


def test_a_template_of_no_family_is_taught() -> None:
    for source in (None, "", "{% for m in messages %}{{ m.content }}{% endfor %}"):
        family = family_of(source)
        assert (family.name, family.reasoning) == (TAUGHT.name, None)
    thinker = family_of("{{ '<think>' }}{{ messages[0].content.split('</think>')[-1] }}")
    assert thinker.name == TAUGHT.name
    assert thinker.reasoning is not None


@pytest.mark.parametrize(
    ("name", "thought"),
    [
        ("qwen3", "may"),
        ("qwen3.5", "open"),
        ("deepseek-r1", "open"),
        ("deepseek-v3.1", "closed"),
        ("glm-4.6", "may"),
        ("glm-4.7", "open"),
        ("gpt-oss", "may"),
        ("gemma-4", "closed"),
        ("qwen2.5", "closed"),
    ],
)
@pytest.mark.parametrize("has_tokens", [False, True])
def test_a_prompts_end_says_whether_it_begins_a_thought(
    name: str, thought: str, has_tokens: bool
) -> None:
    """Not what stands before it: an earlier turn and a tool's result quote the marks."""
    of = model(name, has_tokens=has_tokens)
    messages = [
        {"role": "user", "content": "What is <think>?"},
        {"role": "assistant", "content": "It begins a thought. <think>"},
        {"role": "user", "content": "And </think>?"},
    ]
    prompt = of.template.render(messages)
    assert thought_at(of.family, of.marked(prompt)) == thought
