"""How long a model may reason: the engine's `ReasoningLimit` on the wire."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

MarkIds = Annotated[
    tuple[Annotated[int, Meta(ge=0, lt=1 << 31)], ...], Meta(min_length=1, max_length=64)
]
MarkText = Annotated[str, Meta(min_length=1, max_length=256)]
Marks = Annotated[tuple[MarkIds | MarkText, ...], Meta(max_length=16)]


class ReasoningLimitSpec(Struct, frozen=True, kw_only=True):
    """Tokens between the marks of reasoning, and what is written where a model needs more."""

    max_tokens: Annotated[int, Meta(ge=0, le=1 << 20)]
    end_ids: MarkIds
    begins: Marks = ()  # any number of times; none: the prompt has begun it
    ends: Marks = ()

    @property
    def needs_texts(self) -> bool:
        """Return whether a mark is a text, which the vocabulary's tokens spell in many ways."""
        return any(isinstance(mark, str) for mark in (*self.begins, *self.ends))
