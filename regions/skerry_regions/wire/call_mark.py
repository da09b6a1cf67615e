"""What begins calls of tools in a text: the engine's `CallMark` on the wire."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class CallMarkSpec(Struct, frozen=True, kw_only=True):
    """A text, or a control token, which nothing else in an output begins with."""

    text: Annotated[str, Meta(max_length=256)] = ""
    rest: Annotated[str, Meta(max_length=256)] = ""
    token: Annotated[int, Meta(ge=0, lt=1 << 31)] | None = None
    is_first: bool = False  # a call can only be the whole output
