"""An answer as a list of items, thoughts, texts and calls of tools, in dialects that send them one
by one."""

from __future__ import annotations

from dataclasses import dataclass, field

from skerry.wire import Message, TokenLogprob
from skerry_edge.families.deltas import CallDelta, PartialCall, ReasoningDelta, TextDelta
from skerry_edge.generation.generation import Piece


@dataclass(slots=True)
class SaidItem:
    """What comes as text, as far as it has come."""

    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class TextItem(SaidItem):
    """A text between calls."""


class ReasoningItem(SaidItem):
    """A thought, without logprobs."""


Item = TextItem | ReasoningItem | PartialCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a piece added to one item. An item that begins is the end of the one before."""

    index: int
    begins: bool
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    arguments: str = ""  # a piece of a call's JSON


class OutputItems:
    """The items of one choice, put together from pieces."""

    def __init__(self) -> None:
        self.all: list[Item] = []
        self._held: list[TokenLogprob] = []  # of tokens whose text may become a call's markup

    def add(self, piece: Piece) -> list[Change]:
        """Take a piece in; what it changed, in order. Logprobs of calls are left out, and those of
        thoughts."""
        self._held += piece.logprobs
        changes = []
        for delta in piece.deltas:
            match delta:
                case TextDelta(text):
                    if self.all and not isinstance(self.all[-1], TextItem):
                        text = text.removeprefix("\n")  # that parts it from the text before
                    changes.append(self._add(TextItem, text, self._logprobs_of(text)))
                case ReasoningDelta(text):
                    self._held = []
                    changes.append(self._add(ReasoningItem, text, []))
                case CallDelta():
                    self._held = []
                    changes.append(self._add_call(delta))
        return changes

    def _add(
        self,
        kind: type[TextItem] | type[ReasoningItem],
        text: str,
        logprobs: list[TokenLogprob],
    ) -> Change:
        last = self.all[-1] if self.all else None
        item = last if isinstance(last, kind) else kind()
        if item is not last:
            self.all.append(item)
        item.pieces.append(text)
        item.logprobs += logprobs
        begins = item is not last
        return Change(index=len(self.all) - 1, begins=begins, text=text, logprobs=logprobs)

    def _add_call(self, delta: CallDelta) -> Change:
        begins = delta.id is not None and delta.name is not None
        if delta.id is not None and delta.name is not None:
            self.all.append(PartialCall(delta.id, delta.name))
        call = self.all[-1]
        if not isinstance(call, PartialCall):
            raise ValueError("a call's arguments came before the call")
        call.add(delta)
        return Change(index=len(self.all) - 1, begins=begins, arguments=delta.arguments)

    def close(self) -> list[Change]:
        """Close what is open, at the end: an answer without any item has an empty text."""
        return [] if self.all else [self._add(TextItem, "", [])]

    def message(self) -> Message:
        """Return the answer as a turn of a conversation."""
        texts = [item.text for item in self.all if isinstance(item, TextItem)]
        calls = [item.as_openai() for item in self.all if isinstance(item, PartialCall)]
        thoughts = [item.text for item in self.all if isinstance(item, ReasoningItem)]
        thought = "\n".join(thoughts) or None
        return Message(
            "assistant", "\n".join(texts), tool_calls=calls or None, reasoning_content=thought
        )

    def _logprobs_of(self, text: str) -> list[TokenLogprob]:
        """Return the logprobs of a text that is now certain. Behind it may be held those of a call
        that begins, and after a call, before it, those of that call's end."""
        size, held, self._held = len(text.encode()), self._held, []
        if self.all and isinstance(self.all[-1], PartialCall):
            return _covering(held[::-1], size)[::-1]
        logprobs = _covering(held, size)
        self._held = held[len(logprobs) :]
        return logprobs


def _covering(logprobs: list[TokenLogprob], size: int) -> list[TokenLogprob]:
    """Return as many from the start as have so many bytes."""
    count = 0
    while count < len(logprobs) and size > 0:
        size -= len(logprobs[count].bytes)
        count += 1
    return logprobs[:count]
