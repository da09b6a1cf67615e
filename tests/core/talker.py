"""The toy model with something to say."""

from __future__ import annotations

from collections.abc import Sequence

from skerry_core.batch import Float32, Int64
from skerry_core.runners.toy import ToyRunner

BONUS = 1e6  # of the token that the model would say


class Talker(ToyRunner):
    """A model that says `words` after `turn`, the tokens at which its turn begins, then `end`.

    Where something else was put in a word's place it ends as soon as it may; with `babbles` it
    goes on as the toy does.
    """

    words: Sequence[int] = ()
    turn: Sequence[int] = ()
    end = 0
    babbles = False

    def _score(self, context: Int64, logits: Float32) -> None:
        super()._score(context, logits)
        wanted = self._wanted(context)
        if wanted is not None:
            logits[wanted] += BONUS

    def _wanted(self, context: Int64) -> int | None:
        said = self._said(context.tolist())
        if said == list(self.words[: len(said)]):
            return self.words[len(said)] if len(said) < len(self.words) else self.end
        return None if self.babbles else self.end

    def _said(self, context: list[int]) -> list[int]:
        size = len(self.turn)
        for start in range(len(context) - size, -1, -1):
            if context[start : start + size] == list(self.turn):
                return context[start + size :]
        return context
