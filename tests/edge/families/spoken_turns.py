"""Turns that a model may say: whatever arguments, texts and thoughts a template can lay out."""

from __future__ import annotations

import string
from random import Random
from typing import Any

from tests.edge.families.transcripts import TOOLS, Model, Turn

from skerry_edge.families.family import Family
from skerry_edge.families.source import overlap

SPECIAL = (
    "ü",
    "日本",
    "🙂",
    "\u2028",
    '"',
    "'",
    "\\",
    "\\n",
    "\n",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "<",
    "|",
)


def turn(rng: Random, model: Model) -> Turn:
    """Whatever a template can lay out."""
    case = model.case
    calls = [
        (name, _arguments(rng, model, TOOLS[name]))
        for name in rng.choices(sorted(TOOLS), k=rng.randint(0, case.calls))
    ]
    text = ""
    if not calls or (case.says_and_calls and rng.random() < 0.5):
        text = said(rng, model, in_text=True).strip() or "So."
    thinks = case.thinks and (bool(calls) or case.thinks_and_says) and rng.random() < 0.6
    return Turn(said(rng, model, in_text=True).strip() if thinks else "", text, calls)


def said(rng: Random, model: Model, *, in_text: bool = False) -> str:
    """Letters, quotes, brackets, and marks, wherever they mark nothing."""
    family = model.family
    marks = [*family.tokens, "<tool_call>", "</tool_call>", "```", "{'name'", '{"name": "get"']
    pieces: list[str] = []
    for _ in range(rng.randint(0, 8)):
        kind = rng.random()
        if kind < 0.5:
            pieces.append("".join(rng.choices(string.ascii_letters + " ", k=rng.randint(1, 9))))
        elif kind < 0.8:
            pieces.append(rng.choice(SPECIAL))
        else:
            pieces.append(rng.choice(marks))
    text = "".join(pieces)
    for mark in _never(family, in_text=in_text):
        text = text.replace(mark, "")
    if not in_text:
        return text
    text = text.strip() if family.calls.trigger else text.strip().lstrip("{")
    while family.calls.trigger and overlap(text, family.calls.trigger):
        text = text[:-1].rstrip()  # the grammar lets no text end in half a mark
    return text


def _never(family: Family, *, in_text: bool) -> list[str]:
    """What a text cannot hold, because it marks something wherever it stands."""
    reasoning, style = family.reasoning, family.calls
    marks = ["</think>", "<think>"]  # that templates themselves look for in texts
    if in_text:
        marks += [style.trigger] if style.trigger else []
        marks += [reasoning.begin.strip(), reasoning.end] if reasoning else []
        marks += ["<tool_response>", "</tool_response>", "<|channel>", "<channel|>"]
    elif style.encoding in ("tags", "quoted"):
        marks += [style.value_end.strip() or style.quote, "\n</parameter>"]
    return marks


def _arguments(rng: Random, model: Model, schema: dict[str, Any]) -> dict[str, Any]:
    return {key: _value(rng, model, key) for key in schema["properties"] if rng.random() < 0.6}


def _value(rng: Random, model: Model, key: str) -> Any:
    match key:
        case "path" | "code":
            return said(rng, model)
        case "count":
            return rng.choice((0, -5, 12, 10**15))
        case "deep":
            return rng.random() < 0.5
        case "names":
            return [said(rng, model) for _ in range(rng.randint(0, 3))]
        case "maybe":
            return rng.choice((None, 1.5, -0.25, 3))
        case _:
            return {"a": said(rng, model), "b": [1, {"c": None}], "d": {}, "e": [True, 2.5]}
