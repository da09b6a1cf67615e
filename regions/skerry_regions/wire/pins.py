"""What of a prompt was cached, and beginnings of it that stay so for a time, on the wire."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

MAX_PINS = 4  # of a prompt: the dialects' breakpoints

Number = Annotated[int, Meta(ge=0, lt=1 << 53)]
Pin = tuple[Number, Annotated[float, Meta(gt=0.0, le=86400.0)]]
"""So many tokens of a prompt, from its beginning, stay cached for so many seconds."""
PinList = Annotated[tuple[Pin, ...], Meta(max_length=MAX_PINS)]  # in ascending order


class Pinned(Struct, frozen=True):
    """What a request's pins did: the engine's `PinUsage`."""

    written: Annotated[tuple[Number, ...], Meta(max_length=MAX_PINS)]  # tokens, by pin
    lapsed: Number = 0  # of the tenant's older pins


class PromptUse(Struct, frozen=True, kw_only=True):
    """What is known of a prompt once its first token is made."""

    cached_tokens: Number
    pinned: Pinned | None = None  # of requests with pins
