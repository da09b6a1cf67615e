"""Text that comes in pieces, read by what is expected next. Each read waits for what it needs:

    name = yield from source.up_to("</name>")

where a plain `yield` of a generator is "more input, please". What has been read is decided by the
text alone and never by where it was cut, so that any split of a text reads as the whole of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from typing import Final, TypeVar

BLANK: Final = " \t\r\n"

T = TypeVar("T")
Waits = Generator[None, None, T]

_decoder = json.JSONDecoder()


class BadMarkup(Exception):
    """What has come is not what its marks said."""


class Source:
    """What has come of an output and is not yet read."""

    def __init__(self) -> None:
        self.text = ""
        self.is_last = False  # nothing follows

    def take(self, size: int) -> str:
        """Return so many characters from the start; they are read."""
        taken, self.text = self.text[:size], self.text[size:]
        return taken

    def find(self, marks: Sequence[str]) -> tuple[int, str]:
        """Return where the first mark begins, and which it is; else, with no mark, from where on
        the text may be the beginning of one."""
        found = [(at, -len(mark), mark) for mark in marks if (at := self.text.find(mark)) >= 0]
        if found:
            at, _, mark = min(found)
            return at, mark
        return len(self.text) - max((overlap(self.text, mark) for mark in marks), default=0), ""

    def more(self) -> Waits[None]:
        """Wait for more."""
        before = len(self.text)
        while len(self.text) == before:
            yield

    def blanks(self) -> Waits[str]:
        """Skip blanks; return the character behind them, which is not read."""
        while True:
            self.text = self.text.lstrip(BLANK)
            if self.text:
                return self.text[0]
            yield

    def one_of(self, *marks: str) -> Waits[str]:
        """Skip blanks and one of these marks; return it. Raises `BadMarkup`."""
        while True:
            yield from self.blanks()
            whole = [mark for mark in marks if self.text.startswith(mark)]
            longer = [
                mark for mark in marks if len(mark) > len(self.text) and mark.startswith(self.text)
            ]
            if not longer:
                if not whole:
                    raise BadMarkup
                mark = max(whole, key=len)
                self.take(len(mark))
                return mark
            yield from self.more()

    def expect(self, markup: str) -> Waits[None]:
        """Skip markup, in which blanks do not count. Raises `BadMarkup`."""
        for part in markup.split():
            yield from self.one_of(part)

    def up_to(self, *marks: str, keep: bool = False) -> Waits[tuple[str, str]]:
        """Return the text before the first mark, and that mark, which is read unless `keep`."""
        while True:
            at, mark = self.find(marks)
            if mark:
                text = self.take(at)
                self.take(0 if keep else len(mark))
                return text, mark
            yield

    def stream_up_to(self, mark: str, tell: Callable[[str], None]) -> Waits[None]:
        """Call `tell` with the text before a mark as it comes; the mark is read."""
        while True:
            at, found = self.find((mark,))
            if at:
                tell(self.take(at))
            if found:
                self.take(len(mark))
                return
            yield

    def json_string(self) -> Waits[str]:
        """Return a JSON string. Raises `BadMarkup`."""
        if (yield from self.blanks()) != '"':
            raise BadMarkup
        end, is_escaped = 1, False
        while True:
            while end < len(self.text):
                character = self.text[end]
                end += 1
                if character == '"' and not is_escaped:
                    return _decoded(self.take(end))
                is_escaped = character == "\\" and not is_escaped
            yield

    def json_value(self, tell: Callable[[str], None]) -> Waits[None]:
        """Call `tell` with a JSON value as it comes, up to its end and no further."""
        first = yield from self.blanks()
        if first not in '{["':
            while True:
                ends = [at for at, letter in enumerate(self.text) if letter in ",]}" + BLANK]
                tell(self.take(ends[0] if ends else len(self.text)))
                if ends:
                    return
                yield
        depth, in_string, is_escaped = 0, False, False
        while True:
            for index, character in enumerate(self.text):
                if in_string:
                    in_string = is_escaped or character != '"'
                    is_escaped = character == "\\" and not is_escaped
                elif character == '"':
                    in_string = True
                else:
                    depth += (character in "{[") - (character in "}]")
                if not depth and not in_string:
                    tell(self.take(index + 1))
                    return
            if self.text:
                tell(self.take(len(self.text)))
            yield


def _decoded(text: str) -> str:
    try:
        value = _decoder.decode(text)
    except ValueError:
        raise BadMarkup from None
    if not isinstance(value, str):
        raise BadMarkup
    return value


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of `text` that `mark` starts with."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if mark.startswith(text[-size:])), 0)
