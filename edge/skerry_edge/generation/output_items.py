"""An answer as a list of items, texts and calls of tools, in dialects that send them one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from skerry.wire import Message, TokenLogprob
from skerry_edge.generation.generation import Piece
from skerry_edge.output.tool_parser import PartialCall


@dataclass(slots=True)
class TextItem:
    """A text between calls, as far as it has come."""

    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


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
        self.all: list[TextItem | PartialCall] = []

    def add(self, piece: Piece) -> list[Change]:
        """Take a piece in; what it changed, in order."""
        changes = []
        if piece.text or piece.logprobs:
            changes.append(self._add_text(piece.text, piece.logprobs))
        for delta in piece.calls:
            begins = delta.id is not None and delta.name is not None
            if delta.id is not None and delta.name is not None:
                self.all.append(PartialCall(delta.id, delta.name))
            call = self.all[-1]
            if not isinstance(call, PartialCall):
                raise ValueError("a call's arguments came before the call")
            call.arguments += delta.arguments
            index = len(self.all) - 1
            changes.append(Change(index=index, begins=begins, arguments=delta.arguments))
        return changes

    def close(self) -> list[Change]:
        """Close what is open, at the end: an answer without any item has an empty text."""
        return [] if self.all else [self._add_text("", [])]

    def message(self) -> Message:
        """Return the answer as a turn of a conversation."""
        texts = [item.text for item in self.all if isinstance(item, TextItem)]
        calls: list[dict[str, Any]] = [
            {
                "id": item.id,
                "type": "function",
                "function": {"name": item.name, "arguments": item.arguments},
            }
            for item in self.all
            if isinstance(item, PartialCall)
        ]
        return Message("assistant", "\n".join(texts), tool_calls=calls or None)

    def _add_text(self, text: str, logprobs: list[TokenLogprob]) -> Change:
        last = self.all[-1] if self.all else None
        begins = not isinstance(last, TextItem)
        item = last if isinstance(last, TextItem) else TextItem()
        if begins:
            self.all.append(item)
        item.pieces.append(text)
        item.logprobs += logprobs
        return Change(index=len(self.all) - 1, begins=begins, text=text, logprobs=logprobs)
