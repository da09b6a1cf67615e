"""Which family a model is of, and whether a prompt of its begins a thought.

Not by its name: a release changes it, and who trains a model further may give it another template.
The chat template says how calls and thoughts are written, and the vocabulary which of the marks are
control tokens. The first entry of the table whose marks all stand in the template is the model's;
its thoughts are kept only if the template has their marks too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal

import jinja2

from skerry_edge.families.family import Family
from skerry_edge.families.table import ENTRIES, TAUGHT

Thought = Literal["open", "may", "closed"]

_SWITCHES: Final = ("enable_thinking", "thinking")
_EFFORTS: Final = ("reasoning_effort",)


def family_of(
    chat_template: str | None, control_id: Callable[[str], int | None] = lambda _: None
) -> Family:
    """Return the family of the model behind a chat template, for its vocabulary.

    `TAUGHT` where no entry has the template's way to write calls. `control_id` knows the model's
    control tokens.
    """
    source = chat_template or ""
    family = next((each.family for each in ENTRIES if _holds(source, each.marks)), TAUGHT)
    if family.is_marked_by_tokens and control_id(family.calls.trigger) is None:
        family = TAUGHT  # a text may hold that spelling
    variables = _variables(source)
    reasoning = family.reasoning
    if reasoning is not None and _holds(source, reasoning.shown_by):
        switch = next((name for name in _SWITCHES if name in variables), None)
        effort = next((name for name in _EFFORTS if name in variables), None)
        reasoning = replace(reasoning, switch=switch, effort=effort)
    else:
        reasoning = None
    described = family.is_templated and "tools" in variables
    family = replace(
        family,
        reasoning=reasoning,
        describes_tools=described,
        lays_out_calls=family.is_templated and "tool_calls" in source,
    )
    return family.bound(control_id)


def _holds(source: str, marks: tuple[str, ...]) -> bool:
    return all(mark in source for mark in marks)


def _variables(source: str) -> frozenset[str]:
    """Return the names in a template's code that are no attributes and no part of a text."""
    names: set[str] = set()
    before = ""
    try:
        for _, kind, value in jinja2.Environment(autoescape=True).lex(source):
            if kind == "name" and before != ".":
                names.add(value)
            before = before if kind == "whitespace" else value
    except jinja2.TemplateSyntaxError:  # the template is refused where it is compiled
        pass
    return frozenset(names)


def thought_at(family: Family, prompt_end: str) -> Thought:
    """Return whether a prompt ends within a thought, behind one, or where the model may begin one.

    Only its end decides: earlier turns, and results of tools, may hold any mark. `prompt_end` has
    control tokens as their characters.
    """
    reasoning = family.reasoning
    if reasoning is None:
        return "closed"
    text = prompt_end.rstrip()
    if text.endswith(reasoning.begin.rstrip()):
        return "open"
    return "closed" if text.endswith(reasoning.end) and not family.messages else "may"
