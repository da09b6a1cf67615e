"""Values that outputs of one grammar may have, and their ends, as texts and as tokens; and what of
all this is found once, by whoever compiles a grammar first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from skerry_core.grammar.spelling import Spelling, WayParts

MAX_ENDINGS: Final = 4096  # of values, to be tried in the middle of one: below 1 µs each

# What ends any string: also after half an escape, or half a character.
_STRING_ENDS = (
    *(b'"', b'a"', b'0"', b'00"', b'000"', b'0000"', b'n"', b'\\udc00"', b'udc00"'),
    *(b'\x80"', b'\x80\x80"', b'\x80\x80\x80"', b'\x90\x80\x80"', b'\xa0\x80"'),
)
# What ends a number, also a multiple of something; or `true`, `false`, `null`.
_OTHER_ENDS = (
    *(b"%0*d" % (size, number) for size in (1, 2, 3) for number in range(10**size)),
    *(word[start:] for word in (b"true", b"false", b"null") for start in range(1, len(word))),
)


@dataclass(frozen=True, slots=True)
class ValueTexts:
    """What is the same in every vocabulary; each list has the shortest first."""

    is_json: bool
    whole: list[bytes]
    string_ends: list[bytes]  # what may follow in the middle of a string
    other_ends: list[bytes]  # likewise of numbers and words


@dataclass(frozen=True, slots=True)
class GrammarEnds:
    """How outputs of a grammar can end: what compiling finds besides the automaton. Plain data, so
    that one process finds it for another with the same vocabulary."""

    texts: ValueTexts
    way: WayParts | None  # from the start; None where none was found
    call_way: WayParts | None  # from where a call has begun


def value_texts(values: Iterable[str], *, is_json: bool) -> ValueTexts:
    """Return values and what they may end in. Milliseconds, of thousands of values."""
    ordered = sorted({value.encode() for value in values if value}, key=_by_length)
    strings = [value for value in ordered if value.startswith(b'"')] if is_json else ordered
    others = [value for value in ordered if value[:1] not in b'"{['] if is_json else []
    return ValueTexts(
        is_json,
        ordered,
        _endings(strings, _STRING_ENDS) if is_json else _endings(ordered, ordered),
        _endings(others, _OTHER_ENDS),
    )


class Values:
    """They in one vocabulary."""

    def __init__(self, texts: ValueTexts, spelling: Spelling) -> None:
        self.texts = texts
        self.is_json = texts.is_json
        self.whole = Candidates(texts.whole, spelling)
        self.string_ends = Candidates(texts.string_ends, spelling)
        self.other_ends = Candidates(texts.other_ends, spelling)
        after = b",}]:" if texts.is_json else b""
        self.after = [spelling.of_byte[byte] for byte in after if spelling.of_byte[byte] >= 0]


class Candidates:
    """Texts in order, each with its tokens, which are looked up when it is first tried: most never
    are."""

    def __init__(self, texts: list[bytes], spelling: Spelling) -> None:
        self._texts = texts
        self._spelling = spelling
        self._ids: list[list[int] | None] = [None] * len(texts)

    def __iter__(self) -> Iterator[tuple[bytes, list[int]]]:
        """Yield those that the vocabulary can write. Threads that look the same one up at once find
        the same."""
        for place, text in enumerate(self._texts):
            ids = self._ids[place]
            if ids is None:
                ids = self._ids[place] = self._spelling.ids(text)
            if ids:
                yield text, ids


def _endings(values: Iterable[bytes], general: Iterable[bytes]) -> list[bytes]:
    """Return what may follow in the middle of a value, the shortest first."""
    found = dict.fromkeys(general)
    for value in values:
        for start in range(max(1, len(value) - 256), len(value)):
            found[value[start:]] = None
        if len(found) > MAX_ENDINGS:
            break
    return sorted(found, key=_by_length)


def _by_length(text: bytes) -> tuple[int, bytes]:
    return len(text), text
