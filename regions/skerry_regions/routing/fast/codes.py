"""Numbers for words, as rows have them in place of names."""

from __future__ import annotations

from skerry_regions.routing.fast.arrays import NOBODY, SEVERAL


class Codes(dict[str, int]):
    """Small numbers for words, in the order in which they were first given."""

    def of(self, word: str) -> int:
        """Return a word's number, a new one the first time."""
        return self.setdefault(word, len(self))

    def find(self, word: str | None) -> int:
        """Return a word's number; `SEVERAL`, which no node has, for an unknown one; `NOBODY` for
        none."""
        return NOBODY if word is None else self.get(word, SEVERAL)
