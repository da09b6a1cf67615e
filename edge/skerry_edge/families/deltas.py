"""What a model's output is made of, as it comes: text, reasoning, calls of tools."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the thought before it."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A part of one call. The first one has its id and name, the others pieces of arguments."""

    index: int
    arguments: str = ""  # JSON
    id: str | None = None
    name: str | None = None
    ends: bool = False  # the call is whole; never of one that was cut


Delta = TextDelta | ReasoningDelta | CallDelta


@dataclass(slots=True)
class PartialCall:
    """A call as far as it has come."""

    id: str
    name: str
    arguments: str = ""
    is_whole: bool = False

    def add(self, delta: CallDelta) -> None:
        """Take in more of it."""
        self.arguments += delta.arguments
        self.is_whole = self.is_whole or delta.ends

    def as_openai(self) -> dict[str, Any]:
        """Return it as a turn of a conversation has it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


class Calls:
    """The calls of one choice, put together from their parts."""

    def __init__(self) -> None:
        self.all: list[PartialCall] = []

    def add(self, deltas: Iterable[CallDelta]) -> None:
        for delta in deltas:
            if delta.id is not None and delta.name is not None:
                self.all.append(PartialCall(delta.id, delta.name))
            self.all[delta.index].add(delta)


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """Return the same with neighbours of one kind as one."""
    all_: list[Delta] = []
    for delta in deltas:
        match (all_[-1] if all_ else None), delta:
            case TextDelta(before), TextDelta(more):
                all_[-1] = TextDelta(before + more)
            case ReasoningDelta(before), ReasoningDelta(more):
                all_[-1] = ReasoningDelta(before + more)
            case CallDelta(id=None) as last, CallDelta(id=None) if last.index == delta.index:
                arguments = last.arguments + delta.arguments
                all_[-1] = replace(last, arguments=arguments, ends=delta.ends)
            case _:
                all_.append(delta)
    return all_
