"""What begins a call of a tool within a text: the tokens that may not come where no call fits."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from skerry_core.batch import UInt32
from skerry_core.grammar.spelling import Spelling


class CallMark(Protocol):
    """What begins a call, and nothing else in an output."""

    @property
    def text(self) -> str:
        """Return the first word of the text that does; empty where a control token does."""
        ...

    @property
    def rest(self) -> str:
        """Return what has to follow that word: without it, it is text."""
        ...

    @property
    def token(self) -> int | None:
        """Return that control token."""
        ...

    @property
    def is_first(self) -> bool:
        """Return whether a call can only be the whole output."""
        ...


class CallMarks:
    """One mark in one vocabulary. Where in a text a mark may go on is the text's tail."""

    def __init__(self, mark: CallMark, spelling: Spelling, mask_words: int) -> None:
        self.text = mark.text.encode()
        self.rest = mark.rest.encode()
        self.token = mark.token
        self._is_first = mark.is_first
        self._texts = spelling.texts
        last = self.text[-1:]  # what completes the word, or the token that is the mark
        self._completing = (
            [token_id for token_id, text in enumerate(self._texts) if last in text]
            if self.token is None
            else [self.token]
        )
        # By how much of the first word is there: bits of the tokens that do not complete it.
        self._kept = [
            self._without(self.text[:overlap], mask_words)
            for overlap in range(max(1, len(self.text)))
        ]

    def begun(self, tail: bytes, token_id: int) -> bytes | None:
        """Return what a token says after the first word of a mark, which it completes; None when
        it completes none."""
        if self.token is not None:
            return b"" if token_id == self.token else None
        if self._is_first:
            text = self._texts[token_id]
            is_call = not tail and text.startswith(self.text)
            return text[len(self.text) :] if is_call else None
        _, mark, rest = (tail + self._texts[token_id]).partition(self.text)
        return rest if mark else None

    def tail(self, text: bytes) -> bytes:
        """Return as much of a text's end as shows where a mark may go on."""
        return text[-max(1, len(self.text) - 1) :]

    def kept(self, tail: bytes) -> UInt32 | None:
        """Return bits of the tokens that do not begin a call here; None where none can."""
        if self._is_first:
            return None if tail else self._kept[0]
        longest = min(len(tail), len(self.text) - 1)
        sizes = range(longest, 0, -1)
        overlap = next((n for n in sizes if self.text.startswith(tail[-n:])), 0)
        return self._kept[overlap]

    def _without(self, begun: bytes, mask_words: int) -> UInt32:
        kept = np.full(mask_words * 32, True)
        for token_id in self._completing:
            kept[token_id] = self.begun(begun, token_id) is None
        return np.packbits(kept, bitorder="little").view(np.uint32)
