"""Calls of tools found in a stream of text: markup stays out of it, arguments come as deltas."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from skerry_edge.output.tools import Family

CALL_OPENING = '{"name": '  # of every call

_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A part of one call. The first one has its id and name, the others pieces of arguments."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(slots=True)
class PartialCall:
    """A call as far as it has come."""

    id: str
    name: str
    arguments: str = ""


class Calls:
    """The calls of one choice, put together from their parts."""

    def __init__(self) -> None:
        self.all: list[PartialCall] = []

    def add(self, deltas: Iterable[CallDelta]) -> None:
        for delta in deltas:
            if delta.id is not None and delta.name is not None:
                self.all.append(PartialCall(delta.id, delta.name))
            self.all[delta.index].arguments += delta.arguments


class ToolParser:
    """Splits the output of one choice into text and calls.

    The output follows the family's grammar, so what follows its marks is a call; only the end may
    be missing, and then half a mark is no text. Whitespace around calls belongs to the markup.
    """

    def __init__(self, family: Family) -> None:
        self._family = family
        self._buffer = ""  # not yet distinguished
        self._space = ""  # whitespace that is text only if more text follows
        self._has_spoken = False  # text came
        self._in_call = False
        self._has_siblings = False  # the call that is being read is not the first of its list
        self._arguments: _Arguments | None = None  # of the call that is being read
        self.num_calls = 0
        self.is_cut = False  # the output, in a call
        self._is_led = False

    def lead(self) -> None:
        """Cut a call here: what follows is not the model's, but leads to an end before the limit,
        and who runs calls must not be sent one that looks whole."""
        self._is_led = True
        self.is_cut = self.is_cut or self._in_call or bool(self._held())

    def push(self, text: str) -> tuple[str, list[CallDelta]]:
        """Return text and parts of calls that are certain after this piece."""
        if self.is_cut:
            return "", []
        self._buffer += text
        return self._read()

    def finish(self) -> tuple[str, list[CallDelta]]:
        """Return what was held back, when nothing follows."""
        if self.is_cut:
            return "", []
        text, deltas = self._read()
        return text if self.num_calls or self._in_call else text + self._space, deltas

    def _read(self) -> tuple[str, list[CallDelta]]:
        text, deltas = "", list[CallDelta]()
        before = -1
        while before != len(self._buffer) and not self.is_cut:
            before = len(self._buffer)
            if self._arguments is not None:
                self._read_arguments(self._arguments, deltas)
            elif self._in_call:
                self._read_head(deltas)
            else:
                text += self._spoken(self._read_text())
        return text, deltas

    def _read_text(self) -> str:
        """Return text up to the next call, or to what may become one."""
        mark = self._family.trigger or CALL_OPENING
        at = self._buffer.find(mark)
        if at >= 0 and self._may_call(at):
            self._in_call = True
            self.is_cut = self.is_cut or self._is_led
            text, rest = self._buffer[:at], self._buffer[at:]
            self._buffer = rest.removeprefix(self._family.trigger)
            return text
        end = len(self._buffer) - self._held()
        text, self._buffer = self._buffer[:end], self._buffer[end:]
        return text

    def _held(self) -> int:
        """Return how many characters at the end may begin a call."""
        held = _overlap(self._buffer, self._family.trigger or CALL_OPENING)
        return held if held and self._may_call(len(self._buffer) - held) else 0

    def _may_call(self, at: int) -> bool:
        """Return whether a call may start there; without a mark of its own only at the very
        start."""
        return bool(self._family.trigger) or (at == 0 and not self._has_spoken)

    def _spoken(self, text: str) -> str:
        """Return text that is sent now; whitespace waits for what follows."""
        if not text:
            return ""
        if not text.strip() and not self._has_spoken:
            self._space += text
            return ""
        space, self._space = self._space, ""
        text = text.lstrip() if self.num_calls and not self._has_spoken else space + text
        self._has_spoken = True
        return text

    def _read_head(self, deltas: list[CallDelta]) -> None:
        """Read the name, once the whole of it is there."""
        start, key = self._buffer.lstrip(), f', "{self._family.arguments_key}": '
        if self._family.is_list:
            start = start.removeprefix("," if self._has_siblings else "[").lstrip()
        try:
            name, end = _decoder.raw_decode(start, len(CALL_OPENING))
        except ValueError:
            return
        if not start.startswith(key, end):
            return
        self._buffer = start[end + len(key) :]
        self._arguments = _Arguments()
        deltas.append(CallDelta(self.num_calls, id=self._family.new_id(), name=name))
        self.num_calls += 1

    def _read_arguments(self, arguments: _Arguments, deltas: list[CallDelta]) -> None:
        if not arguments.is_whole:
            taken = arguments.take(self._buffer)
            if taken:
                deltas.append(CallDelta(self.num_calls - 1, self._buffer[:taken]))
                self._buffer = self._buffer[taken:]
        if arguments.is_whole and self._family.is_list and self._buffer.startswith("},"):
            self._buffer = self._buffer.removeprefix("}")
            self._arguments, self._has_siblings = None, True
        elif arguments.is_whole:
            closing = "}]" if self._family.is_list else "}" + self._family.end
            if self._buffer.startswith(closing):
                self._buffer = self._buffer.removeprefix(closing)
                self._arguments, self._in_call, self._has_siblings = None, False, False
                self._has_spoken, self._space = False, ""


class _Arguments:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.is_whole = False

    def take(self, text: str) -> int:
        """Return how many of these characters belong to it."""
        for index, character in enumerate(text):
            if self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_whole = True
                    return index + 1
        return len(text)


def _overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of `text` that `mark` starts with."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if mark.startswith(text[-n:])), 0)
