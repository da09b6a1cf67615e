"""Keeps control tokens out of what users write.

A chat template mixes its own control tokens with the users' text, and the result is one string.
So that a user's `<|im_end|>` stays text, it is broken by a mark (a Unicode noncharacter, never in
real text) before the template sees it. The tokenizer looks for control tokens first, finds the
user's broken, and only then drops the marks: what the model reads is exactly what was written.
Text without anything like a control token, which is nearly all text, is not touched, and read by
the model's own tokenizer, which is faster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from tokenizers import Regex, Tokenizer, normalizers

MARK: Final = "\ufdd0"
_ESCAPE: Final = "\ufdd1"  # a mark that users themselves wrote is a mark followed by this

_MAX_DEPTH: Final = 64  # of nested values in messages and tools


class Guard:
    """Marks users' text for one tokenizer."""

    def __init__(self, control_tokens: Iterable[str]) -> None:
        """Raises ValueError for a control token of one character, which no mark can break."""
        texts = sorted({text for text in control_tokens if text}, key=len, reverse=True)
        if texts and len(texts[-1]) == 1:
            raise ValueError(f"the control token {texts[-1]!r} has only one character")
        whole = "|".join(map(re.escape, texts)) or r"(?!)"
        self._whole = re.compile(whole)
        # The first character of each one, also of those that begin inside another; slower.
        self._starts = re.compile(f"(?={whole}).", re.DOTALL)
        # Two neighbouring pieces of text could make up a control token that neither of them holds.
        self._heads = tuple({text[:i] for text in texts for i in range(1, len(text))})
        self._tails = tuple({text[i:] for text in texts for i in range(1, len(text))})

    def mark(self, text: str) -> str:
        """Return `text` in a form in which no part of it is, or helps to make, a control token."""
        if MARK in text:
            text = text.replace(MARK, MARK + _ESCAPE)
        if self._whole.search(text):
            text = self._starts.sub(_broken, text)
        if text.startswith(self._tails):
            text = MARK + text
        if text.endswith(self._heads):
            text += MARK
        return text

    def mark_all(self, value: Any, depth: int = 0) -> Any:
        """Return a copy of plain data (as JSON has it) with every string marked, keys included.

        Raises ValueError when it is nested too deeply.
        """
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")
        if isinstance(value, str):
            return self.mark(value)
        if isinstance(value, dict):
            return {self.mark(key): self.mark_all(each, depth + 1) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark_all(each, depth + 1) for each in value]
        return value


def _broken(match: re.Match[str]) -> str:
    return match[0] + MARK


def dropping_marks(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that drops marks after it looked for control tokens, and before anything
    else; for the rest it is as the given one, whose vocabulary it shares."""
    added = tokenizer.get_added_tokens_decoder()
    twin = Tokenizer(tokenizer.model)
    twin.pre_tokenizer = tokenizer.pre_tokenizer
    for _, token in sorted(added.items()):
        (twin.add_special_tokens if token.special else twin.add_tokens)([token])
    if twin.get_added_tokens_decoder() != added:  # their ids are not those that come next
        twin = Tokenizer.from_str(tokenizer.to_str())
    drop = normalizers.Replace(Regex(f"{MARK}(?!{_ESCAPE})"), "")
    restore = normalizers.Replace(MARK + _ESCAPE, MARK)
    own = tokenizer.normalizer
    steps = [drop, restore] if own is None else [drop, restore, own]
    twin.normalizer = normalizers.Sequence(steps)
    return twin
