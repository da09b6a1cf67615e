"""Marks in what a model says, on the wire: the engine's `CallMark` and `ReasoningLimit`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

MarkIds = Annotated[
    tuple[Annotated[int, Meta(ge=0, lt=1 << 31)], ...], Meta(min_length=1, max_length=64)
]
MarkText = Annotated[str, Meta(min_length=1, max_length=256)]
Marks = Annotated[tuple[MarkIds | MarkText, ...], Meta(max_length=16)]


class CallMarkSpec(Struct, frozen=True, kw_only=True):
    """What begins calls of tools: a text, or a control token, which nothing else in an output
    begins with."""

    text: Annotated[str, Meta(max_length=256)] = ""
    rest: Annotated[str, Meta(max_length=256)] = ""
    token: Annotated[int, Meta(ge=0, lt=1 << 31)] | None = None
    is_first: bool = False  # a call can only be the whole output


class ReasoningLimitSpec(Struct, frozen=True, kw_only=True):
    """How long a model may reason: tokens between the marks of reasoning, and what is written where
    it needs more."""

    max_tokens: Annotated[int, Meta(ge=0, le=1 << 20)]
    end_ids: MarkIds
    begins: Marks = ()  # any number of times; none: the prompt has begun it
    ends: Marks = ()

    @property
    def needs_texts(self) -> bool:
        """Return whether a mark is a text, which the vocabulary's tokens spell in many ways."""
        return any(isinstance(mark, str) for mark in (*self.begins, *self.ends))
