"""Reads the stream of one output: reasoning, text and calls come out, as early as is certain.

What was said is never taken back, no mark is ever part of a text, and however the stream is cut
into pieces, what comes out is the same in sum.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from skerry_edge.families.call_readers import Schema, read_calls
from skerry_edge.families.deltas import CallDelta, Delta, ReasoningDelta, TextDelta
from skerry_edge.families.family import CallStyle, MessageStyle, ReaderSpec, is_mark
from skerry_edge.families.source import BLANK, BadMarkup, Source, Waits, overlap

_STRAY: Final = re.compile("[\ufdd0-\ufdef]")  # control tokens that mark nothing where they stand
_RECIPIENT: Final = re.compile(r"\bto=([^\s\ufdd0-\ufdef<]+)")
_CHANNEL: Final = re.compile(r"\s*(\w+)")


class Reader:
    """Splits the output of one choice into text, reasoning and calls.

    A grammar held the output wherever it may have calls, so what follows a mark is what the mark
    says; only the end may be missing, and then half a mark is no text. Blanks around calls and
    thoughts belong to their marks.
    """

    def __init__(self, spec: ReaderSpec) -> None:
        self._spec = spec
        self._family = spec.family
        self._source = Source()
        self._deltas: list[Delta] = []
        self._space = ""  # blanks that are text only if more text follows
        self._has_begun = False  # this part of the output, text or a thought
        self._was_marked = spec.is_open  # a mark came before it, and has the blanks there
        self._has_said = False  # some text, at any time
        self._has_thought = False
        self._is_led = False
        self._is_ended = False
        self.counts_reasoning = self._family.reasoning is not None  # tokens may be of a thought
        self.is_reasoning = spec.is_open
        self.in_call = False
        self.in_header = self._family.messages is not None  # of a message, which is markup
        self.has_open_call = False  # the last one is not whole
        self.num_calls = 0
        self.is_cut = False  # in a call, or where one would have begun
        self._steps = self._run()
        next(self._steps)

    def lead(self) -> None:
        """Cut a call here: what follows is not the model's, but leads to an end before the limit,
        and who runs calls must not be sent one that looks whole."""
        self._is_led = True
        self.is_cut = self.is_cut or self.in_call or self._holds_call()

    def push(self, text: str) -> list[Delta]:
        """Return what is certain after this piece."""
        self._source.text += text
        return self._read()

    def finish(self, *, is_ended: bool = True) -> list[Delta]:
        """Return what was held back, when nothing follows; `is_ended` by the model itself, whose
        text is then no half mark."""
        self._source.is_last, self._is_ended = True, is_ended
        return self._read()

    def _read(self) -> list[Delta]:
        self._deltas = []
        if not self.is_cut:
            try:
                next(self._steps, None)
            except BadMarkup:
                self.is_cut = True
        return self._deltas

    # --- calls, as their readers report them

    def begin_call(self, name: str) -> None:
        call = CallDelta(self.num_calls, id=self._family.new_id(), name=name)
        self._deltas.append(call)
        self.num_calls += 1
        self.has_open_call = True

    def add_arguments(self, text: str) -> None:
        if text := _STRAY.sub("", text):
            self._deltas.append(CallDelta(self.num_calls - 1, text))

    def end_call(self) -> None:
        self._deltas.append(CallDelta(self.num_calls - 1, ends=True))
        self.has_open_call = False

    # --- text and thoughts

    def _run(self) -> Waits[None]:
        yield
        style, tools = self._family.calls, self._spec.tools
        if self._family.messages is not None:
            yield from self._messages(self._family.messages)
        if tools is not None and not style.trigger and not self.is_reasoning:
            yield from self._whole_call(style, tools)
        while True:
            if (yield from self._opening()):
                continue
            mark = yield from self._up_to_mark()
            if mark == style.trigger:
                self._turn(is_reasoning=False)
                yield from self._called(style, tools or {})
            elif mark:
                self._turn(is_reasoning=mark != self._end_of_thought)
            else:
                return

    def _called(self, style: CallStyle, tools: Mapping[str, Schema]) -> Waits[None]:
        if self._is_led:
            raise BadMarkup
        self.in_call = True
        yield from read_calls(self._source, style, tools, self)
        self.in_call = False

    def _opening(self) -> Waits[bool]:
        """Read a thought's mark where nothing was said yet; return whether there was one. Only
        there does it count when it is merely spelled: later it is quoted."""
        reasoning = self._family.reasoning
        if reasoning is None or self.is_reasoning or self._has_said or self.num_calls:
            return False
        while True:
            text = self._source.text.lstrip(BLANK)
            for mark in (reasoning.begin, reasoning.end):
                if text.startswith(mark):
                    self._source.text = text[len(mark) :]
                    self._turn(is_reasoning=mark == reasoning.begin)
                    return True
            could_be = reasoning.begin.startswith(text) or reasoning.end.startswith(text)
            if self._source.is_last and could_be and text and not self._is_ended:
                self._source.text = ""
            if self._source.is_last or not could_be:
                return False
            yield

    def _up_to_mark(self) -> Waits[str]:
        """Read text or a thought up to the next mark; return that, or nothing at the end."""
        trigger = self._family.calls.trigger
        marks = [trigger] if self._spec.tools is not None and trigger else []
        if reasoning := self._family.reasoning:
            if self.is_reasoning:
                marks.append(reasoning.end)
            else:
                marks += filter(is_mark, (reasoning.begin, reasoning.end))
        while not (mark := self._say_up_to(marks)):
            if self._source.is_last:
                self._end()
                break
            yield
        return mark

    @property
    def _end_of_thought(self) -> str:
        return self._family.reasoning.end if self._family.reasoning else ""

    def _turn(self, *, is_reasoning: bool) -> None:
        """Go on to another part of the output."""
        self._has_begun, self._was_marked, self._space = False, True, ""
        self.is_reasoning = is_reasoning

    def _say_up_to(self, marks: Sequence[str]) -> str:
        """Report what has come before the first of these marks; return that, which is read."""
        at, mark = self._source.find(marks)
        self._say(self._source.take(at))
        self._source.take(len(mark))
        return mark

    def _say(self, text: str) -> None:
        """Report text or a thought; blanks wait for what follows."""
        text = self._space + _STRAY.sub("", text)
        said = text.rstrip(BLANK)
        self._space = text[len(said) :]
        if not said:
            return
        if not self._has_begun:
            if self._was_marked:
                said = said.lstrip(BLANK)
            if self._has_thought if self.is_reasoning else self._has_said:
                said = "\n" + said
        self._has_begun = True
        if self.is_reasoning:
            self._has_thought = True
            self._deltas.append(ReasoningDelta(said))
        else:
            self._has_said = True
            self._deltas.append(TextDelta(said))

    def _end(self) -> None:
        """Release what was held back and is text after all; half a call's mark never is."""
        held = self._source.take(len(self._source.text))
        rest = self._space + ("" if self._spec.tools is not None else held)
        if rest and not self.is_reasoning and (self._has_begun or not self._was_marked):
            self._deltas.append(TextDelta(rest))

    # --- other layouts

    def _holds_call(self) -> bool:
        """Return whether what is held back may be a call's beginning."""
        held, trigger = self._source.text, self._family.calls.trigger
        if self._spec.tools is None or self.is_reasoning:
            return False
        return overlap(held, trigger) > 0 if trigger else bool(held)

    def _whole_call(self, style: CallStyle, tools: Mapping[str, Schema]) -> Waits[None]:
        """Read a call that can only be the whole output: it is one by its first words."""
        heads = tuple(map(style.head, tools))
        while not self._source.text.startswith(heads):
            if not any(head.startswith(self._source.text) for head in heads):
                return
            if self._source.is_last:
                self._source.text = ""
                return
            yield
        yield from self._called(style, tools)

    def _messages(self, style: MessageStyle) -> Waits[None]:
        """Read messages for as long as any come: each is a thought, text, or a call."""
        ends = (*style.ends, style.start, style.channel)
        while True:
            self.in_header = True
            header, mark = yield from self._source.up_to(style.message, *style.ends)
            if mark != style.message:
                continue
            self.in_header = False
            recipient = _RECIPIENT.search(header)
            channel = _CHANNEL.match(header.rpartition(style.channel)[2])
            is_thought = channel is not None and channel[1] == style.thought
            self._turn(is_reasoning=is_thought and recipient is None)
            if recipient is None:
                while not self._say_up_to(ends):
                    if self._source.is_last:
                        self._end()
                    yield
                self._turn(is_reasoning=False)
                continue
            if self._spec.tools is not None:
                if self._is_led:
                    raise BadMarkup
                self.in_call = True
                self.begin_call(recipient[1].removeprefix(style.recipient))
                if (yield from self._source.blanks()) != "{":
                    raise BadMarkup
                yield from self._source.json_value(self.add_arguments)
                self.end_call()
            yield from self._source.up_to(*ends)
            self.in_call = False
