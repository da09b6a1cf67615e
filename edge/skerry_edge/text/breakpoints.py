"""Which beginnings of a prompt are to stay cached: breakpoints in a conversation, as tokens.

A breakpoint cuts the conversation: the turns before it, and the turn that it stands in as far as
there. Laid out by itself this begins as the whole prompt does, up to where the template writes
something else because more follows. So far it stays the same whatever follows, and so far it is
pinned. Where templates put tools, and what they leave out of earlier turns, need not be known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from skerry.errors import InvalidInput
from skerry.wire import Message
from skerry_edge.text.model import Prompt
from skerry_regions.wire.pins import Pin

MOST: Final = 4  # breakpoints of a request, that of the whole prompt included, in any dialect

# Stands for the user's first turn where the cut is before it, since many templates want one: a
# noncharacter, with which no turn begins.
NOT_YET: Final = Message("user", "\ufdd2")

Turns = Sequence[Message]


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """The end of a beginning that is to stay cached."""

    seconds: float
    turns: Callable[[], Turns] | None = None
    """Returns the conversation up to there; None: all of it."""


Breakpoints = Sequence[Breakpoint]  # of one conversation, in its order


def outlasting(breakpoints: Breakpoints) -> list[Breakpoint]:
    """Return the breakpoints of a conversation, in its order, without those that a later one
    outlasts: what comes before it is kept as long."""
    found: list[Breakpoint] = []
    for each in reversed(breakpoints):
        if not found or each.seconds > found[-1].seconds:
            found.append(each)
    return found[::-1]


def pins_at(
    breakpoints: Breakpoints,
    prompt: Prompt,
    lay_out: Callable[[Turns], Prompt],
    count: Callable[[Prompt], int],
) -> tuple[Pin, ...]:
    """Return the pins of a prompt, which `lay_out` made of the whole conversation, by breakpoints
    in the conversation's order; `count` returns the tokens of a beginning of the prompt.

    A breakpoint has no pin where the template cannot lay out what comes before it.
    """
    ends = [(_end(each, prompt, lay_out), each.seconds) for each in breakpoints]
    return tuple((count(Prompt(prompt[:end])), seconds) for end, seconds in ends if end)


def _end(breakpoint: Breakpoint, prompt: Prompt, lay_out: Callable[[Turns], Prompt]) -> int:
    """Return how many characters of the prompt come before a breakpoint."""
    if breakpoint.turns is None:
        return len(prompt)
    turns = breakpoint.turns()
    if not any(turn.role == "user" for turn in turns):
        turns = [*turns, NOT_YET]
    try:
        return _shared(prompt, lay_out(turns))
    except InvalidInput:  # its template refuses such a conversation
        return 0


def _shared(one: str, other: str) -> int:
    """Return the length of the longest common prefix."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
