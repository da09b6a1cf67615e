"""Texts in as few tokens as a vocabulary allows."""

from __future__ import annotations

from typing import Final

from llguidance import LLTokenizer

MAX_TOKEN: Final = 64  # bytes of a token that a text is written with
_FAR: Final = 1 << 30
WayParts = tuple[bytes, list[int], list[tuple[int, int]]]
"""A `Way` as plain data: its text, its counts and its picks."""
MARK: Final = b"\xff["  # begins a control token in a text: `\xff[5]`; UTF-8 has no such byte


class Way:
    """What makes an output whole: a text, and how each end of it is written in the fewest tokens.

    Control tokens stand in it as `MARK` has it.
    """

    __slots__ = ("_counts", "_ids", "_picks", "text")

    def __init__(self, text: bytes, counts: list[int], picks: list[tuple[int, int]]) -> None:
        """By the length of an end: how many tokens write it; the first one's id and length."""
        self.text = text
        self._counts = counts
        self._picks = picks
        self._ids: list[int] | None = None

    @property
    def parts(self) -> WayParts:
        """Return what another process makes the same way of."""
        size = len(self.text) + 1
        return self.text, self._counts[:size], self._picks[:size]

    @property
    def num_tokens(self) -> int:
        return self._counts[len(self.text)]

    @property
    def head(self) -> int | None:
        """Return its first token; None where nothing is left to say."""
        return self._picks[len(self.text)][0] if self.text else None

    def ids(self) -> list[int]:
        """Return its tokens."""
        if self._ids is None:
            self._ids, left = [], len(self.text)
            while left:
                token_id, size = self._picks[left]
                self._ids.append(token_id)
                left -= size
        return self._ids

    def rest(self, size: int) -> Way:
        """Return what follows so many bytes of it."""
        return Way(self.text[size:], self._counts, self._picks)


NOTHING_LEFT: Final = Way(b"", [0], [(-1, 0)])


class Spelling:
    """A vocabulary's tokens by their bytes."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        """A tenth of a second and more."""
        self._ids: dict[bytes, int] = {}
        self._longest: dict[bytes, int] = {}  # of the tokens that begin with these two bytes
        self.texts: list[bytes] = []  # by token
        for token_id in range(tokenizer.vocab_size):
            if tokenizer.is_special_token(token_id):
                text = MARK + b"%d]" % token_id
            else:
                text = tokenizer.decode_bytes([token_id])
            self.texts.append(text)
            if text and len(text) <= MAX_TOKEN and text not in self._ids:
                self._ids[text] = token_id
                begin = text[:2]
                self._longest[begin] = max(len(text), self._longest.get(begin, 0))
        self.of_byte = [self._ids.get(bytes([byte]), -1) for byte in range(256)]

    def way(self, text: bytes, rest: Way = NOTHING_LEFT) -> Way | None:
        """Return a text with a way after it; None where the vocabulary cannot write it.

        By dynamic programming from its end: what is known of the rest stays.
        """
        whole = text + rest.text
        size = len(whole)
        counts, picks = rest._counts[: len(rest.text) + 1], rest._picks[: len(rest.text) + 1]
        for at in range(len(text) - 1, -1, -1):
            best, pick = _FAR, (-1, 1)
            most = max(self._longest.get(whole[at : at + 2], 1), 1)
            for end in range(at + 1, min(size, at + most) + 1):
                token_id = self._ids.get(whole[at:end])
                if token_id is not None and counts[size - end] < best:
                    best, pick = counts[size - end], (token_id, end - at)
            counts.append(min(best + 1, _FAR))
            picks.append(pick)
        return Way(whole, counts, picks) if counts[size] < _FAR else None

    def ids(self, text: bytes) -> list[int]:
        """Return the tokens of a text: its bytes where each is one, as a matcher takes any.

        Empty where the vocabulary cannot write it.
        """
        if text.startswith(MARK):
            return [self._ids[text]] if text in self._ids else []
        ids = [self.of_byte[byte] for byte in text]
        if -1 not in ids:
            return ids
        way = self.way(text)
        return [] if way is None else way.ids()
