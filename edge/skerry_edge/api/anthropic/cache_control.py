"""`cache_control` of Anthropic's Messages: what of a request stays cached, and for how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice, pairwise
from typing import Final

import msgspec

from skerry.errors import InvalidInput
from skerry_edge.api.anthropic.messages_input import turns_of
from skerry_edge.api.anthropic.messages_wire import (
    CacheControl,
    InputMessage,
    MessagesRequest,
)
from skerry_edge.text.breakpoints import MOST, Breakpoint

SIGN: Final = b'"cache_control"'  # in every body that has one
SECONDS: Final = {"5m": 300.0, "1h": 3600.0}


def breakpoints_of(
    asked: MessagesRequest, history: Sequence[InputMessage], opening: InputMessage | None = None
) -> list[Breakpoint]:
    """Return what of a request stays cached; `history` is its messages without the `opening` of the
    answer.

    Raises `InvalidInput` for more than four, or an hour's after those of five minutes.
    """
    marks = chain(_of_head(asked), _of_messages(asked, history), _of_opening(opening))
    found = list(islice(marks, MOST + 1))
    if asked.cache_control is not None:
        whole = Breakpoint(SECONDS[asked.cache_control.ttl])
        if not found or found[-1].turns is not None:
            found.append(whole)
        elif found[-1] != whole:
            raise InvalidInput(
                "Bad input: cache_control: the last block has one with another ttl",
                param="cache_control",
            )
    if len(found) > MOST:
        raise InvalidInput(
            f"Bad input: cache_control: more than {MOST} blocks of the request have it",
            param="cache_control",
        )
    if any(one.seconds < other.seconds for one, other in pairwise(found)):
        raise InvalidInput(
            'Bad input: cache_control: blocks with a ttl of "1h" come before those of "5m"; '
            "tools, system and messages follow each other",
            param="cache_control",
        )
    return found


def _of_head(asked: MessagesRequest) -> Iterator[Breakpoint]:
    """Yield those of tools and of the system prompt. Templates put tools where they like, so these
    end with the whole system prompt."""
    head = partial(turns_of, asked.system, ())
    for number, tool in enumerate(asked.tools or ()):
        if (given := tool.get("cache_control")) is not None:
            place = f"tools[{number}].cache_control"
            try:
                asks = msgspec.convert(given, CacheControl)
            except msgspec.ValidationError as error:
                raise InvalidInput(f"Bad input: {place}: {error}", param=place) from None
            yield Breakpoint(SECONDS[asks.ttl], head)
    if isinstance(asked.system, list):
        for end, block in enumerate(asked.system, 1):
            if isinstance(mark := block.cache_control, CacheControl):
                yield Breakpoint(SECONDS[mark.ttl], partial(turns_of, asked.system[:end], ()))


def _of_messages(asked: MessagesRequest, history: Sequence[InputMessage]) -> Iterator[Breakpoint]:
    for number, message in enumerate(history):
        for end, mark in _marks(message):
            if number + 1 == len(history) and end == len(message.content):
                yield Breakpoint(SECONDS[mark.ttl])
            else:
                begun = InputMessage(message.role, message.content[:end])
                cut = partial(turns_of, asked.system, [*history[:number], begun])
                yield Breakpoint(SECONDS[mark.ttl], cut)


def _of_opening(opening: InputMessage | None) -> Iterator[Breakpoint]:
    """Yield those of the answer's beginning, of which the conversation before it stays cached."""
    if opening is not None:
        for _, mark in _marks(opening):
            yield Breakpoint(SECONDS[mark.ttl])


def _marks(message: InputMessage) -> Iterator[tuple[int, CacheControl]]:
    """Yield where the blocks end that are marked, counted in blocks, and how."""
    if isinstance(message.content, list):
        for end, block in enumerate(message.content, 1):
            if isinstance(mark := getattr(block, "cache_control", None), CacheControl):
                yield end, mark
