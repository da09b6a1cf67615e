"""Which regular expressions of JSON schemas grammars can hold: what ECMA-262 and Rust's `regex`
mean alike, without what looks around.

Schemas are written for the one, grammars compiled by the other
(https://docs.rs/regex/latest/regex/#syntax). What is found here to be sound compiles.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_DEPTH: Final = 40  # of groups

_COUNT = re.compile(r"\{([0-9]{1,4})(,([0-9]{1,4})?)?\}\??")
_GROUP = re.compile(r"\?(?::|[is]+:|P?<([A-Za-z_][A-Za-z0-9_]*)>)")
_HEX = re.compile(r"(?:x|u00)([0-9A-Fa-f]{2})|u(?!00|[Dd][89A-Fa-f])([0-9A-Fa-f]{4})")
_PROPERTY = re.compile(
    r"[pP]\{(?:L[ulmto]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?|C[cfno]?"
    r"|(?:Script=)?(?:Latin|Greek|Cyrillic|Han|Hiragana|Katakana|Arabic|Hebrew))\}"
)
_CONTROLS: Final = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
_PUNCTUATION: Final = frozenset("!\"#$%&'()*+,-./:;=?@[\\]^_`{|}~")


@dataclass(frozen=True, slots=True)
class PatternFault:
    """The reason for which a pattern is not held. `is_certain`: no grammar could hold it."""

    what: str
    is_certain: bool


class _Unsound(Exception):
    def __init__(self, what: str, *, is_certain: bool = True) -> None:
        super().__init__(what)
        self.fault = PatternFault(what, is_certain)


def pattern_fault(pattern: str) -> PatternFault | None:
    """Return what of a pattern a grammar cannot hold, or may not; None for nothing. Takes time in
    proportion to its length."""
    try:
        _PatternReader(pattern).read()
    except _Unsound as unsound:
        return unsound.fault
    return None


class _PatternReader:
    """Reads one pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._place = 0
        self._names: set[str] = set()
        self._num_anchors = 0

    def read(self) -> None:
        """Raises `_Unsound`."""
        self._alternatives(depth=0, is_first=True)
        if self._place < len(self._pattern):
            raise self._unknown()  # a `)` that closes nothing

    def _alternatives(self, *, depth: int, is_first: bool) -> bool:
        """Return whether an alternative ends in an anchor: nothing may follow it."""
        if depth > MAX_DEPTH:
            raise self._unknown()
        is_ended = self._sequence(depth, is_first=is_first)
        while self._takes("|"):
            is_ended |= self._sequence(depth, is_first=is_first)
        return is_ended

    def _sequence(self, depth: int, *, is_first: bool) -> bool:
        is_ended = False
        while (letter := self._next()) not in ("", "|", ")"):
            if letter == "^" or self._pattern.startswith("\\A", self._place):
                self._place += 1 if letter == "^" else 2
                self._num_anchors += 1
                if not is_first or is_ended:
                    raise _Unsound("an anchor is supported at the ends alone")
                if self._next() in ("*", "+", "?", "{"):
                    raise self._unknown()
                continue
            if is_ended:
                raise _Unsound("an anchor is supported at the ends alone")
            is_first_atom, is_first = is_first, False
            if letter == "$" or self._pattern.startswith("\\z", self._place):
                self._place += 1 if letter == "$" else 2
                self._num_anchors += 1
                is_ended = True
            elif letter == "(":
                is_ended = self._group(depth, is_first=is_first_atom)
            else:
                self._atom(letter)
            self._repetitions(is_anchored=is_ended)
        return is_ended

    def _group(self, depth: int, *, is_first: bool) -> bool:
        self._place += 1
        for mark in ("?=", "?!", "?<=", "?<!"):
            if self._pattern.startswith(mark, self._place):
                raise _Unsound("look-around is not supported")
        if self._pattern.startswith("?P=", self._place):
            raise _Unsound("back references are not supported")
        if self._next() == "?":
            opened = _GROUP.match(self._pattern, self._place)
            if opened is None or opened[1] in self._names:
                raise self._unknown()
            if opened[1]:
                self._names.add(opened[1])
            self._place = opened.end()
        before = self._num_anchors
        is_ended = self._alternatives(depth=depth + 1, is_first=is_first)
        if not self._takes(")"):
            raise self._unknown()
        if self._num_anchors != before and self._next() in ("*", "+", "?", "{"):
            raise self._unknown()  # an anchor that may be repeated, or left out
        return is_ended

    def _repetitions(self, *, is_anchored: bool) -> None:
        while (letter := self._next()) in ("*", "+", "?", "{"):
            if is_anchored:
                raise self._unknown()
            if letter != "{":
                self._place += 1
                continue
            count = _COUNT.match(self._pattern, self._place)
            if count is None or (count[3] and int(count[3]) < int(count[1])):
                raise self._unknown()
            self._place = count.end()

    def _atom(self, letter: str) -> None:
        if letter in "*+?{":
            raise self._unknown()
        if letter == "[":
            self._set()
        elif letter == "\\":
            self._escape()
        else:
            self._place += 1

    def _set(self) -> None:
        self._place += 1
        self._takes("^")
        if self._next() == "]":  # closes in one dialect and is a member in the other
            raise self._unknown()
        while not self._takes("]"):
            first = self._member()
            if self._next() != "-" or self._pattern[self._place + 1 : self._place + 2] == "]":
                continue
            if first is None:  # `[\w-.]`: a hyphen to the one, an error to the other
                raise self._unknown()
            self._place += 1
            last = self._member()
            if last is None or last < first:
                raise self._unknown()

    def _member(self) -> int | None:
        """Return a member's code point; None for a class of them."""
        letter = self._next()
        is_operator = self._pattern[self._place : self._place + 2] in ("&&", "--", "~~")
        if letter in ("", "[") or is_operator:
            raise self._unknown()
        if letter == "\\":
            return self._escape(is_inside=True)
        self._place += 1
        return ord(letter)

    def _escape(self, *, is_inside: bool = False) -> int | None:
        """Return what an escape stands for; None for a class of letters."""
        self._place += 1
        letter = self._next()
        if not is_inside and (letter in "123456789" or letter == "k") and letter:
            raise _Unsound("back references are not supported")
        if not is_inside and letter in ("b", "B"):
            raise _Unsound("word boundaries are not supported")
        if letter in _PUNCTUATION or letter in _CONTROLS:
            self._place += 1
            return _CONTROLS.get(letter, ord(letter))
        if letter and letter in "dDwWsS":
            self._place += 1
            return None
        for kind in (_HEX, _PROPERTY):
            if found := kind.match(self._pattern, self._place):
                self._place = found.end()
                return int(found[1] or found[2], 16) if kind is _HEX else None
        raise self._unknown()

    def _next(self) -> str:
        """Return the next letter; an empty text at the end."""
        return self._pattern[self._place : self._place + 1]

    def _takes(self, letter: str) -> bool:
        is_next = self._next() == letter
        self._place += is_next
        return is_next

    def _unknown(self) -> _Unsound:
        return _Unsound(f"its syntax is not known at character {self._place}", is_certain=False)
