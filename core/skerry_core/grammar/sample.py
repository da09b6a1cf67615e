"""A short text that a regular expression matches."""

from __future__ import annotations

import re
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

MAX_LENGTH: Final = 4096  # characters
MAX_TURNS: Final = 16  # alternatives of one expression


def pattern_samples(pattern: str) -> list[str]:
    """Return short matches of an expression, the shortest first; with alternatives, one of each.

    They may be wrong: Python reads a few expressions otherwise than a grammar does.
    """
    try:
        steps = parser.parse(pattern)
        found = {_matched(steps, turn) for turn in range(MAX_TURNS)}
    except (re.error, ValueError, StopIteration, RecursionError, OverflowError, Warning):
        return []
    return sorted(found, key=lambda text: (len(text), text))


def _matched(steps: Any, turn: int) -> str:
    """Return a match that takes this one of any alternatives."""
    text = ""
    for kind, value in steps:
        match str(kind):
            case "LITERAL":
                text += chr(value)
            case "NOT_LITERAL":
                text += "b" if value == ord("a") else "a"
            case "ANY":
                text += "a"
            case "IN":
                text += _one_of(value)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                if value[0] > MAX_LENGTH:
                    raise ValueError("too long")
                text += _matched(value[2], turn) * value[0] if value[0] else ""
            case "SUBPATTERN":
                text += _matched(value[3], turn)
            case "ATOMIC_GROUP":
                text += _matched(value, turn)
            case "BRANCH":
                text += _matched(value[1][turn % len(value[1])], turn)
            case "AT":
                pass
            case other:
                raise ValueError(other)
        if len(text) > MAX_LENGTH:
            raise ValueError("too long")
    return text


def _one_of(items: Any) -> str:
    """Return a character of a class."""
    if str(items[0][0]) == "NEGATE":
        return next(char for char in "ab0- .AB1_" if not any(_holds(item, char) for item in items))
    kind, value = items[0]
    match str(kind):
        case "LITERAL":
            return chr(value)
        case "RANGE":
            return chr(value[0])
        case _:
            return next(char for char in "a0 -" if _holds(items[0], char))


def _holds(item: Any, char: str) -> bool:
    """Return whether a part of a class holds a character."""
    kind, value = item
    match str(kind):
        case "LITERAL":
            return bool(ord(char) == value)
        case "RANGE":
            return bool(value[0] <= ord(char) <= value[1])
        case "CATEGORY":
            name = str(value).removeprefix("CATEGORY_")
            if name.startswith("NOT_"):
                return not _holds((kind, name.removeprefix("NOT_")), char)
            return {"DIGIT": char.isdecimal(), "SPACE": char.isspace()}.get(
                name, char.isalnum() or char == "_"
            )
        case _:
            return False
